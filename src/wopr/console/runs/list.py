"""The list of runs: filters, pages and open interrupts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from wopr.console.inbox.pending import OpenInterrupt, open_interrupts_of
from wopr.console.page import Page, PageRequest, list_etag, not_modified_response, with_etag
from wopr.console.runs.annotations import feedback_text
from wopr.console.runs.feedback import offers_feedback
from wopr.http.operation import read_cursor, write_cursor
from wopr.http.response import Response
from wopr.http.routes.runs import run_filter
from wopr.http.routes.workflows import newest_workflows
from wopr.protocol.errors import Refused
from wopr.protocol.runs import RUN_STATUSES
from wopr.store.port import RunFilter, RunPage, RunRow
from wopr.store.port.feedback import FeedbackCount

PAGE_RUNS: Final = 50
# Runs that one request of a text search reads. The page then offers to continue.
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
# The choices of the feedback filter, each with the query of the API.
FEEDBACK: Final = {
    words: {name: value}
    for name in ("flagged", "rated", "corrected")
    for words, value in ((name, "true"), (f"not {name}", "false"))
}


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of the list."""

    row: RunRow
    interrupts: Sequence[OpenInterrupt]
    feedback_text: str


async def list_runs(request: PageRequest) -> Response:
    """List the tenant's runs, newest first."""
    where = _filter(request)
    after = read_cursor(request.query.get("cursor"))
    text = request.query.get("q", "").lower()
    searched = 0
    if text:
        page, searched = await _search(request, where, after, text)
    else:
        page = await request.host.store.runs(request.tenant, where, after, PAGE_RUNS)
    run_ids = [row.run_id for row in page.runs]
    feedback = await request.host.store.run_feedback(request.tenant, run_ids)
    lines = [await _line(request, row, feedback.get(row.run_id)) for row in page.runs]
    tag = _tag(request, lines)
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    workflows, _ = await newest_workflows(request.host.store, request.tenant, None, _SUGGESTED)
    response = await request.page(
        "runs.html",
        lines=lines,
        query=request.query,
        statuses=RUN_STATUSES,
        groups=_GROUPS,
        feedback=FEEDBACK,
        within=_WITHIN,
        workflows=[each.id for each in workflows],
        searched=searched,
        next_page=_next_page(request, page),
        is_filtered=any(name not in ("cursor", "done") for name in request.query),
        is_live="cursor" not in request.query and not text,
        offers_feedback=offers_feedback(request),
    )
    return with_etag(response, tag)


def _tag(request: PageRequest, lines: Sequence[RunLine]) -> str:
    shown = [(line.row.run_id, line.row.updated_at, line.feedback_text) for line in lines]
    shows_durations = any(line.row.ended_at is None for line in lines)
    return list_etag(request, shown, shows_durations=shows_durations)


def _filter(request: PageRequest) -> RunFilter:
    group = _GROUPS.get(request.query.get("status", ""))
    if group is not None:
        others = {name: value for name, value in request.query.items() if name != "status"}
        request.http.query = others | group
    feedback = request.query.get("feedback")
    if feedback is not None:
        request.http.query = request.http.query | feedback_filter(feedback)
    where = run_filter(request.http)
    within = request.query.get("within")
    if within is None:
        return where
    if within not in _WITHIN:
        raise Refused(f"within must be one of {', '.join(_WITHIN)}", field="within")
    return replace(where, created_from=request.now - _WITHIN[within][1])


def feedback_filter(words: str) -> dict[str, str]:
    """Return the API's filter for a choice in a form."""
    if words not in FEEDBACK:
        raise Refused(f"feedback must be one of {', '.join(FEEDBACK)}", field="feedback")
    return FEEDBACK[words]


async def _search(
    request: PageRequest, where: RunFilter, after: tuple[int, str] | None, text: str
) -> tuple[RunPage, int]:
    """Search the newest runs for a text: in ids, tags, and snapshots of ended runs."""
    store, found, searched = request.host.store, list[RunRow](), 0
    while len(found) < PAGE_RUNS and searched < SEARCHED_AT_ONCE:
        page = await store.runs(request.tenant, where, after, _SEARCH_PAGE)
        for row in page.runs:
            searched += 1
            after = (row.created_at, row.run_id)
            if await _contains(request, row, text):
                found.append(row)
            if len(found) == PAGE_RUNS:
                return RunPage(runs=tuple(found), next_after=after), searched
        if page.next_after is None:
            return RunPage(runs=tuple(found), next_after=None), searched
    return RunPage(runs=tuple(found), next_after=after), searched


async def _contains(request: PageRequest, row: RunRow, text: str) -> bool:
    names = (row.run_id, row.workflow_id, *row.tags)
    if any(text in name.lower() for name in names):
        return True
    # The rows of a list have no snapshots, and only ended runs have one.
    whole = await request.host.store.run(request.tenant, row.run_id) if row.ended_at else None
    snapshot = None if whole is None else whole.snapshot
    return snapshot is not None and text in snapshot.decode("utf-8", "replace").lower()


async def _line(request: PageRequest, row: RunRow, feedback: FeedbackCount | None) -> RunLine:
    store = request.host.store
    is_waiting = row.status.startswith("waiting-")
    interrupts = await open_interrupts_of(store, request.tenant, row.run_id) if is_waiting else ()
    return RunLine(row, interrupts, feedback_text(feedback))


def _next_page(request: PageRequest, page: RunPage) -> str:
    if page.next_after is None:
        return ""
    return "/runs?" + urlencode(request.query | {"cursor": write_cursor(page.next_after)})


PAGES: Final = (Page(name="runs", path="/runs", get=list_runs, scope="runs:read"),)
