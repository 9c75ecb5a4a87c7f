"""Count what was thought of runs: by workflow, agent, node, kind of signal or time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

from wopr.protocol.annotations import SIGNAL_KINDS, SignalKind
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import FeedbackGroup, FeedbackSummary, SummaryBy
from wopr.protocol.times import to_iso
from wopr.store.port.feedback import (
    DAY_MS,
    HOUR_MS,
    Annotations,
    FeedbackCount,
    FeedbackFilter,
    GroupBy,
)

DEFAULT_WINDOW_MS: Final = 30 * DAY_MS
_NOTHING: Final = FeedbackCount(ratings=0, rating_sum=0, corrections=0, labels=0, flags=0)
_FIELDS: Final[dict[SignalKind, Literal["ratings", "corrections", "labels", "flags"]]] = {
    "rating": "ratings",
    "correction": "corrections",
    "label": "labels",
    "flag": "flags",
}


class Summaries:
    """Counts a tenant's annotations over a window."""

    def __init__(self, store: Annotations, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    async def read(
        self,
        tenant: str,
        by: SummaryBy,
        *,
        since: int | None = None,
        until: int | None = None,
        workflow_id: str | None = None,
        agent_id: str | None = None,
    ) -> FeedbackSummary:
        """Count in the whole hours around a window; without bounds in the last thirty days."""
        start, end = _window(since, self._now() + 1 if until is None else until)
        where = FeedbackFilter(since=start, until=end, workflow_id=workflow_id, agent_id=agent_id)
        grouping: GroupBy = "nothing" if by == "signal" else by
        counts = await self._store.feedback(tenant, where, grouping)
        total = _sum(counts)
        return FeedbackSummary(
            by=by,
            since=to_iso(start),
            until=to_iso(end),
            total=_measured(total),
            groups=_groups(counts, total, where, by),
        )


def _window(since: int | None, until: int) -> tuple[int, int]:
    end = -(-until // HOUR_MS) * HOUR_MS
    start = end - DEFAULT_WINDOW_MS if since is None else since // HOUR_MS * HOUR_MS
    if start >= end:
        raise Refused("since must be before until", field="since")
    return start, end


def _groups(
    counts: list[FeedbackCount], total: FeedbackCount, where: FeedbackFilter, by: SummaryBy
) -> list[FeedbackGroup]:
    if by == "signal":
        return [_signal_group(total, kind) for kind in SIGNAL_KINDS]
    if by == "time":
        return [_time_group(each, where) for each in sorted(counts, key=lambda c: c.bucket)]
    return [_group(each) for each in sorted(counts, key=_size, reverse=True)]


def _sum(counts: Iterable[FeedbackCount]) -> FeedbackCount:
    total = _NOTHING
    for count in counts:
        total = FeedbackCount(
            ratings=total.ratings + count.ratings,
            rating_sum=total.rating_sum + count.rating_sum,
            corrections=total.corrections + count.corrections,
            labels=total.labels + count.labels,
            flags=total.flags + count.flags,
        )
    return total


def _size(count: FeedbackCount) -> int:
    return count.ratings + count.corrections + count.labels + count.flags


def _measured(
    count: FeedbackCount,
    *,
    workflow_id: str = "",
    agent_id: str = "",
    node_id: str = "",
    signal: SignalKind | None = None,
    since: int | None = None,
    until: int | None = None,
) -> FeedbackGroup:
    size = _size(count)
    return FeedbackGroup(
        annotations=size,
        ratings=count.ratings,
        corrections=count.corrections,
        labels=count.labels,
        flags=count.flags,
        correction_rate=_share(count.corrections, size),
        flag_rate=_share(count.flags, size),
        mean_rating=round(count.rating_sum / count.ratings, 4) if count.ratings else UNSET,
        workflow_id=workflow_id or UNSET,
        agent_id=agent_id or UNSET,
        node_id=node_id or UNSET,
        signal=signal or UNSET,
        since=UNSET if since is None else to_iso(since),
        until=UNSET if until is None else to_iso(until),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _signal_group(total: FeedbackCount, kind: SignalKind) -> FeedbackGroup:
    field = _FIELDS[kind]
    only = replace(_NOTHING, **{field: getattr(total, field)})
    sums = total.rating_sum if kind == "rating" else 0
    return _measured(replace(only, rating_sum=sums), signal=kind)


def _time_group(count: FeedbackCount, where: FeedbackFilter) -> FeedbackGroup:
    """A group of the window; the first and the last may be cut short by the window's edges."""
    start = max(count.bucket, where.since)
    end = min(count.bucket + where.bucket_ms, where.until)
    return _measured(count, since=start, until=end)


def _group(count: FeedbackCount) -> FeedbackGroup:
    return _measured(
        count, workflow_id=count.workflow_id, agent_id=count.agent_id, node_id=count.node_id
    )
