"""The page of one agent of the fleet: statistics, runs and feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr.console.fleet.charts import MAX_RUNS, StackedBar, outcome_bar, trend
from wopr.console.fleet.shared import (
    WINDOW_NAMES,
    AgentWait,
    fleet_page,
    waits_of_runs,
    window_of,
    windows,
    with_query,
)
from wopr.console.page import Page, PageRequest, list_etag, not_modified_response, with_etag
from wopr.console.runs.annotations import (
    AnnotationLine,
    annotation_line,
    feedback_count,
    feedback_text,
)
from wopr.http.operation import write_cursor
from wopr.http.response import Response
from wopr.http.routes.kahn import fleet_cursor
from wopr.kahn.demo.generator import is_demo
from wopr.kahn.statistics import window_start
from wopr.kahn.views import agent_feedback
from wopr.protocol.errors import NotFound
from wopr.protocol.resources.fleet import AgentAggregate, AgentInRun
from wopr.store.port.feedback import AnnotationRow
from wopr.store.port.fleet import AgentRun

PAGE_RUNS: Final = 40
_NOTES_OF_RUN: Final = 50
_NOTES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunLine:
    """One run of the agent."""

    run: AgentInRun
    openwop_run_id: str
    is_observed: bool
    is_demo: bool
    wait: AgentWait | None
    annotations: Sequence[AnnotationRow]

    @property
    def feedback_text(self) -> str:
        """The feedback on the run."""
        return feedback_text(feedback_count(self.annotations))


@dataclass(frozen=True, slots=True)
class RunAnnotation:
    """An annotation and its run."""

    note: AnnotationLine
    run_id: str


async def show_agent(request: PageRequest) -> Response:
    """Show one agent in a window."""
    agent_id, window = request.http.path["fleet_agent_id"], window_of(request)
    views, after = request.host.fleet.views, fleet_cursor(request.http)
    most = PAGE_RUNS + 1 if after else max(MAX_RUNS, PAGE_RUNS + 1)
    rows = await views.agent_runs(request.tenant, agent_id, window, after, most)
    lines = await _lines(request, rows[:PAGE_RUNS])
    totals = await views.agent_totals(request.tenant, window, agent_id)
    shows_durations = any(line.wait is not None for line in lines)
    tag = list_etag(
        request,
        (rows, totals, [line.feedback_text for line in lines]),
        shows_durations=shows_durations,
    )
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    since = window_start(window, request.now)
    quantiles = [("p50", totals.duration_p50_s), ("p95", totals.duration_p95_s)] if totals else []
    response = await fleet_page(
        request,
        "fleet_agent.html",
        agent_id=agent_id,
        totals=totals,
        bar=_bar(totals),
        trend=None if after else trend([views.agent_document(row) for row in rows], quantiles),
        lines=lines,
        annotations=_newest_annotations(lines),
        feedback=await agent_feedback(
            request.host.feedback.summaries, request.tenant, agent_id, since
        ),
        next_page=_next_page(request, rows),
        is_live=after is None,
        window_name=WINDOW_NAMES[window][0],
        windows=windows(request),
    )
    return with_etag(response, tag)


def _bar(totals: AgentAggregate | None) -> StackedBar | None:
    return None if totals is None else outcome_bar(totals.outcomes, totals.run_count)


async def _lines(request: PageRequest, rows: Sequence[AgentRun]) -> list[AgentRunLine]:
    agents = [request.host.fleet.views.agent_document(row) for row in rows]
    waits = await waits_of_runs(request, agents)
    return [await _line(request, each, waits.get((each.run_id, each.agent_id))) for each in agents]


async def _line(request: PageRequest, agent: AgentInRun, wait: AgentWait | None) -> AgentRunLine:
    store, tenant = request.host.store, request.tenant
    found = await store.fleet_run(tenant, agent.run_id)
    if found is None:
        raise NotFound("This run is not in the fleet.")
    run = request.host.fleet.views.run_document(tenant, found)
    return AgentRunLine(
        run=agent,
        openwop_run_id=run.openwop_run_id,
        is_observed=run.source == "push",
        is_demo=is_demo(agent.run_id, agent.agent_id, agent.task),
        wait=wait,
        annotations=await store.annotations(tenant, run.openwop_run_id, None, _NOTES_OF_RUN),
    )


def _newest_annotations(lines: Sequence[AgentRunLine]) -> list[RunAnnotation]:
    """Return the newest annotations of the runs on the page."""
    found = [
        RunAnnotation(annotation_line(row), line.openwop_run_id)
        for line in lines
        for row in line.annotations
    ]
    return sorted(found, key=lambda each: each.note.at, reverse=True)[:_NOTES_SHOWN]


def _next_page(request: PageRequest, rows: Sequence[AgentRun]) -> str:
    if len(rows) <= PAGE_RUNS:
        return ""
    last = rows[PAGE_RUNS - 1]
    return with_query(request, cursor=write_cursor((last.last_event, last.run_id)))


PAGES: Final = (
    Page(
        name="fleet-agent",
        path="/fleet/agents/{fleet_agent_id}",
        get=show_agent,
        scope="fleet:read",
    ),
)
