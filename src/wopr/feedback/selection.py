"""Conversion of run selections into filters of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from wopr.protocol.documents import Unset, to_millis
from wopr.protocol.errors import Refused
from wopr.protocol.resources.reviews import RunSelection
from wopr.store.port import RunFilter, RunLog, RunRow

ENDED = ("completed", "failed", "cancelled")
PAGE = 50
T = TypeVar("T")


def run_filter(selection: RunSelection, redact: Callable[[str], str]) -> RunFilter:
    """Return the filter of a selection; without a status it selects runs that have ended.

    Stored labels are redacted, so the label of the selection is redacted too.
    """
    label = _or_none(selection.label)
    return RunFilter(
        statuses=tuple(selection.status) or ENDED,
        workflow_id=_or_none(selection.workflow_id),
        tag=_or_none(selection.tag),
        parent_run_id=_or_none(selection.parent_run_id),
        created_from=_instant("filter.since", selection.since),
        created_before=_instant("filter.until", selection.until),
        flagged=_or_none(selection.flagged),
        rated=_or_none(selection.rated),
        corrected=_or_none(selection.corrected),
        label=None if label is None else redact(label),
    )


async def each_run(store: RunLog, tenant: str, where: RunFilter) -> AsyncIterator[RunRow]:
    """Yield every run of a filter, newest first, with one page in memory."""
    after: tuple[int, str] | None = None
    while True:
        page = await store.runs(tenant, where, after, PAGE)
        for run in page.runs:
            yield run
        if page.next_after is None:
            return
        after = page.next_after


async def newest_runs(store: RunLog, tenant: str, where: RunFilter, most: int) -> list[str]:
    """Return the ids of the newest `most` runs of a filter."""
    found: list[str] = []
    async for run in each_run(store, tenant, where):
        found.append(run.run_id)
        if len(found) == most:
            break
    return found


def _or_none(value: T | Unset) -> T | None:
    return None if isinstance(value, Unset) else value


def _instant(name: str, value: str | Unset) -> int | None:
    if isinstance(value, Unset):
        return None
    try:
        return to_millis(value)
    except (ValueError, OverflowError):
        raise Refused(f"{name} must be an ISO 8601 time, not {value[:40]!r}", field=name) from None
