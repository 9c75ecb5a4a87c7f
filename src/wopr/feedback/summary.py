"""Counts of feedback by workflow, agent, node, kind of signal or time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace as with_fields

from wopr.protocol.documents import UNSET, to_iso
from wopr.protocol.errors import Refused
from wopr.protocol.resources.annotations import SIGNAL_KINDS, SignalKind
from wopr.protocol.resources.reviews import FeedbackGroup, FeedbackSummary, SummaryBy
from wopr.store.port.feedback import (
    DAY_MS,
    HOUR_MS,
    Annotations,
    FeedbackCount,
    FeedbackFilter,
    GroupBy,
    SignalCount,
)

DEFAULT_WINDOW_MS: Final = 30 * DAY_MS
_NOTHING: Final = FeedbackCount(ratings=0, rating_sum=0, corrections=0, labels=0, flags=0)
_NO_RUNS: Final = SignalCount(runs=0, flagged=0, corrected=0, intervened=0)
_FIELDS: Final[dict[SignalKind, Literal["ratings", "corrections", "labels", "flags"]]] = {
    "rating": "ratings",
    "correction": "corrections",
    "label": "labels",
    "flag": "flags",
}
# The key of a group: workflow id, agent id, node id and start of the period.
_Key: TypeAlias = tuple[str, str, str, int]


class Summaries:
    """Counts a tenant's annotations and runs in a time window."""

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
        """Count in a window that is extended to whole hours; by default the last thirty days."""
        start, end = _window(since, self._now() + 1 if until is None else until)
        where = FeedbackFilter(since=start, until=end, workflow_id=workflow_id, agent_id=agent_id)
        grouping: GroupBy = "nothing" if by == "signal" else by
        counts = await self._store.feedback_counts(tenant, where, grouping)
        annotation_counts = _sum(counts)
        whole = await self._store.signal_counts(tenant, where, "nothing")
        total = _feedback_group(annotation_counts, whole[0] if whole else _NO_RUNS)
        return FeedbackSummary(
            by=by,
            since=to_iso(start),
            until=to_iso(end),
            total=total,
            groups=await self._groups(tenant, by, where, counts, annotation_counts),
        )

    async def _groups(
        self,
        tenant: str,
        by: SummaryBy,
        where: FeedbackFilter,
        counts: list[FeedbackCount],
        annotation_counts: FeedbackCount,
    ) -> list[FeedbackGroup]:
        if by == "signal":
            return [_signal_group(annotation_counts, kind) for kind in SIGNAL_KINDS]
        if by == "node":
            groups = [_group(each, None) for each in counts]
            return sorted(groups, key=_size, reverse=True)
        runs = await self._store.signal_counts(tenant, where, by)
        period = where if by == "time" else None
        groups = [_group(*pair, period) for pair in _pair_by_group(counts, runs)]
        if by == "time":
            return sorted(groups, key=lambda group: group.since or "")
        return sorted(groups, key=_size, reverse=True)


def _window(since: int | None, until: int) -> tuple[int, int]:
    end = -(-until // HOUR_MS) * HOUR_MS
    start = end - DEFAULT_WINDOW_MS if since is None else since // HOUR_MS * HOUR_MS
    if start >= end:
        raise Refused("since must be before until", field="since")
    return start, end


def _pair_by_group(
    counts: Iterable[FeedbackCount], runs: Iterable[SignalCount]
) -> list[tuple[FeedbackCount, SignalCount | None]]:
    """Pair the counts of annotations and of runs by group; a group may have only one of them."""
    annotation_counts = {_key(each): each for each in counts}
    created = {_key(each): each for each in runs}
    return [
        (annotation_counts.get(key) or _without_annotations(created[key]), created.get(key))
        for key in annotation_counts | created
    ]


def _key(count: FeedbackCount | SignalCount) -> _Key:
    node_id = count.node_id if isinstance(count, FeedbackCount) else ""
    return count.workflow_id, count.agent_id, node_id, count.bucket


def _without_annotations(runs: SignalCount) -> FeedbackCount:
    return replace(
        _NOTHING, workflow_id=runs.workflow_id, agent_id=runs.agent_id, bucket=runs.bucket
    )


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


def _size(group: FeedbackGroup) -> tuple[int, int]:
    return group.annotations, group.runs or 0


def _feedback_group(count: FeedbackCount, runs: SignalCount | None) -> FeedbackGroup:
    group = FeedbackGroup(
        annotations=count.size,
        ratings=count.ratings,
        corrections=count.corrections,
        labels=count.labels,
        flags=count.flags,
        mean_rating=UNSET if count.mean is None else count.mean,
    )
    if runs is None:
        return group
    return with_fields(
        group,
        runs=runs.runs,
        corrected_runs=runs.corrected,
        flagged_runs=runs.flagged,
        intervened_runs=runs.intervened,
        correction_rate=_share(runs.corrected, runs.runs),
        flag_rate=_share(runs.flagged, runs.runs),
        intervention_rate=_share(runs.intervened, runs.runs),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _signal_group(total: FeedbackCount, kind: SignalKind) -> FeedbackGroup:
    field = _FIELDS[kind]
    only = replace(_NOTHING, **{field: getattr(total, field)})
    sums = total.rating_sum if kind == "rating" else 0
    return with_fields(_feedback_group(replace(only, rating_sum=sums), None), signal=kind)


def _group(
    count: FeedbackCount, runs: SignalCount | None, window: FeedbackFilter | None = None
) -> FeedbackGroup:
    """Return a group. A group by time is limited to the window."""
    group = _feedback_group(count, runs)
    if window is not None:
        start = max(count.bucket, window.since)
        end = min(count.bucket + window.bucket_ms, window.until)
        return with_fields(group, since=to_iso(start), until=to_iso(end))
    return with_fields(
        group,
        workflow_id=count.workflow_id or UNSET,
        agent_id=count.agent_id or UNSET,
        node_id=count.node_id or UNSET,
    )
