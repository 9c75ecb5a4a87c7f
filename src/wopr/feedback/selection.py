"""Choose runs: a selection as a filter of the store, and the runs that it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from wopr.protocol.documents import Unset
from wopr.protocol.errors import Refused
from wopr.protocol.reviews import RunSelection
from wopr.protocol.times import to_millis
from wopr.store.port import RunFilter, RunLog, RunRow

ENDED = ("completed", "failed", "cancelled")
PAGE = 50
T = TypeVar("T")


def run_filter(selection: RunSelection, redacted: Callable[[str], str]) -> RunFilter:
    """The filter of a selection; without a status it finds runs that have ended.

    Labels were redacted when they were stored, so the one that is asked for is `redacted` too.
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
        label=None if label is None else redacted(label),
    )


async def each_run(store: RunLog, tenant: str, where: RunFilter) -> AsyncIterator[RunRow]:
    """Every run of a filter, newest first, a page in memory at a time."""
    after: tuple[int, str] | None = None
    while True:
        page = await store.runs(tenant, where, after, PAGE)
        for run in page.runs:
            yield run
        if page.next_after is None:
            return
        after = page.next_after


async def newest_runs(store: RunLog, tenant: str, where: RunFilter, most: int) -> list[str]:
    """The ids of the newest so many runs of a filter."""
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
