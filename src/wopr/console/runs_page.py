"""The list of runs: filters, pages, and what each run waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from wopr.console.freshness import list_tag, tagged, unchanged
from wopr.console.notes import marks
from wopr.console.page import Page
from wopr.console.run_feedback import offers_feedback
from wopr.console.visit import Visit
from wopr.console.waiting import Waiting, waits_of
from wopr.http.answers import Answer
from wopr.http.paging import read_cursor, write_cursor
from wopr.http.run_filters import run_filter
from wopr.http.workflows import newest_workflows
from wopr.protocol.errors import Refused
from wopr.protocol.runs import RUN_STATUSES
from wopr.store.port import RunFilter, RunPage, RunRow
from wopr.store.port.feedback import FeedbackCount

PAGE_RUNS: Final = 50
# A search for text looks at so many runs, and then offers to go on.
SEARCHED_AT_ONCE: Final = 2000
_SEARCH_PAGE: Final = 200
_SUGGESTED: Final = 200
_WITHIN: Final = {
    "1h": ("the last hour", 3_600_000),
    "24h": ("the last day", 86_400_000),
    "7d": ("the last week", 7 * 86_400_000),
    "30d": ("the last 30 days", 30 * 86_400_000),
}
_GROUPS: Final = {
    "active": {"status": "pending,running,paused,cancelling"},
    "waiting": {"status": "waiting-approval,waiting-input,waiting-external"},
    "ended": {"status": "completed,failed,cancelled"},
    "in quarantine": {"quarantined": "true"},
}
# What can be asked of a run's feedback, each as a filter of the wire.
FEEDBACK: Final = {
    words: {name: value}
    for name in ("flagged", "rated", "corrected")
    for words, value in ((name, "true"), (f"not {name}", "false"))
}


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of the list."""

    row: RunRow
    waits: Sequence[Waiting]
    marks: str


async def list_runs(visit: Visit) -> Answer:
    """List the tenant's runs, newest first."""
    where = _filter(visit)
    after = read_cursor(visit.query.get("cursor"))
    text = visit.query.get("q", "").lower()
    searched = 0
    if text:
        page, searched = await _search(visit, where, after, text)
    else:
        page = await visit.host.store.runs(visit.tenant, where, after, PAGE_RUNS)
    said = await visit.host.store.run_feedback(visit.tenant, [row.run_id for row in page.runs])
    lines = [await _line(visit, row, said.get(row.run_id)) for row in page.runs]
    tag = _tag(visit, lines)
    known = unchanged(visit, tag)
    if known is not None:
        return known
    workflows, _ = await newest_workflows(visit.host.store, visit.tenant, None, _SUGGESTED)
    answer = await visit.page(
        "runs.html",
        lines=lines,
        query=visit.query,
        statuses=RUN_STATUSES,
        groups=_GROUPS,
        feedback=FEEDBACK,
        within=_WITHIN,
        workflows=[each.id for each in workflows],
        searched=searched,
        next_page=_next(visit, page),
        is_filtered=any(name not in ("cursor", "done") for name in visit.query),
        is_live="cursor" not in visit.query and not text,
        offers_feedback=offers_feedback(visit),
    )
    return tagged(answer, tag)


def _tag(visit: Visit, lines: Sequence[RunLine]) -> str:
    shown = [(line.row.run_id, line.row.updated_at, line.marks) for line in lines]
    is_moving = any(line.row.ended_at is None for line in lines)
    return list_tag(visit, shown, is_moving=is_moving)


def _filter(visit: Visit) -> RunFilter:
    group = _GROUPS.get(visit.query.get("status", ""))
    if group is not None:
        others = {name: value for name, value in visit.query.items() if name != "status"}
        visit.exchange.query = others | group
    said = visit.query.get("feedback")
    if said is not None:
        visit.exchange.query = visit.exchange.query | feedback_filter(said)
    where = run_filter(visit.exchange)
    within = visit.query.get("within")
    if within is None:
        return where
    if within not in _WITHIN:
        raise Refused(f"within must be one of {', '.join(_WITHIN)}", field="within")
    return replace(where, created_from=visit.now - _WITHIN[within][1])


def feedback_filter(words: str) -> dict[str, str]:
    """The filter of the wire that a choice in a form stands for."""
    if words not in FEEDBACK:
        raise Refused(f"feedback must be one of {', '.join(FEEDBACK)}", field="feedback")
    return FEEDBACK[words]


async def _search(
    visit: Visit, where: RunFilter, after: tuple[int, str] | None, text: str
) -> tuple[RunPage, int]:
    """Look through the newest runs for a text: in ids, tags, and what ended runs hold."""
    store, found, searched = visit.host.store, list[RunRow](), 0
    while len(found) < PAGE_RUNS and searched < SEARCHED_AT_ONCE:
        page = await store.runs(visit.tenant, where, after, _SEARCH_PAGE)
        for row in page.runs:
            searched += 1
            after = (row.created_at, row.run_id)
            if await _holds(visit, row, text):
                found.append(row)
            if len(found) == PAGE_RUNS:
                return RunPage(runs=tuple(found), next_after=after), searched
        if page.next_after is None:
            return RunPage(runs=tuple(found), next_after=None), searched
    return RunPage(runs=tuple(found), next_after=after), searched


async def _holds(visit: Visit, row: RunRow, text: str) -> bool:
    names = (row.run_id, row.workflow_id, *row.tags)
    if any(text in name.lower() for name in names):
        return True
    # Lists have no snapshots, and only runs that have ended have one.
    whole = await visit.host.store.run(visit.tenant, row.run_id) if row.ended_at else None
    snapshot = None if whole is None else whole.snapshot
    return snapshot is not None and text in snapshot.decode("utf-8", "replace").lower()


async def _line(visit: Visit, row: RunRow, said: FeedbackCount | None) -> RunLine:
    store = visit.host.store
    is_waiting = row.status.startswith("waiting-")
    waits = await waits_of(store, visit.tenant, row.run_id) if is_waiting else ()
    return RunLine(row, waits, marks(said))


def _next(visit: Visit, page: RunPage) -> str:
    if page.next_after is None:
        return ""
    return "/runs?" + urlencode(visit.query | {"cursor": write_cursor(page.next_after)})


PAGES: Final = (Page(name="runs", path="/runs", get=list_runs, scope="runs:read"),)
