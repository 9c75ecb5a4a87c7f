"""One agent of the fleet: how it is doing, its runs one after the other, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr.console.fleet_charts import StackedBar, outcome_bar
from wopr.console.fleet_frame import SPANS, fleet_page, window_of, windows, with_query
from wopr.console.fleet_trend import MOST_RUNS, trend
from wopr.console.fleet_waiting import Wait, waits_of_runs
from wopr.console.freshness import list_tag, tagged, unchanged
from wopr.console.notes import Note, count_of, marks, note_of
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.fleet import fleet_cursor
from wopr.http.paging import write_cursor
from wopr.protocol.errors import NotFound
from wopr.protocol.fleet import AgentAggregate, AgentInRun
from wopr.runtime.fleet_feedback import feedback_of
from wopr.runtime.fleet_rules import is_demo, start_of
from wopr.store.port.feedback import AnnotationRow
from wopr.store.port.fleet import AgentRun

PAGE_RUNS: Final = 40
_NOTES_OF_RUN: Final = 50
_NOTES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the agent."""

    run: AgentInRun
    openwop_run_id: str
    is_observed: bool
    is_demo: bool
    wait: Wait | None
    annotations: Sequence[AnnotationRow]

    @property
    def marks(self) -> str:
        """What was said of the run."""
        return marks(count_of(self.annotations))


@dataclass(frozen=True, slots=True)
class SaidOfRun:
    """A judgment, and the run that it is about."""

    note: Note
    run_id: str


async def show_agent(visit: Visit) -> Answer:
    """Show one agent in a window."""
    name, window = visit.exchange.path["fleet_agent_id"], window_of(visit)
    views, after = visit.host.fleet.views, fleet_cursor(visit.exchange)
    most = PAGE_RUNS + 1 if after else max(MOST_RUNS, PAGE_RUNS + 1)
    rows = await views.agent_runs(visit.tenant, name, window, after, most)
    lines = await _lines(visit, rows[:PAGE_RUNS])
    totals = await views.agent_totals(visit.tenant, window, name)
    is_moving = any(line.wait is not None for line in lines)
    tag = list_tag(visit, (rows, totals, [line.marks for line in lines]), is_moving=is_moving)
    known = unchanged(visit, tag)
    if known is not None:
        return known
    since = start_of(window, visit.now)
    quantiles = [("p50", totals.duration_p50_s), ("p95", totals.duration_p95_s)] if totals else []
    answer = await fleet_page(
        visit,
        "fleet_agent.html",
        agent_id=name,
        totals=totals,
        bar=_bar(totals),
        trend=None if after else trend([views.agent(row) for row in rows], quantiles),
        lines=lines,
        said=_said(lines),
        feedback=await feedback_of(visit.host.feedback.summaries, visit.tenant, name, since),
        next_page=_next(visit, rows),
        is_live=after is None,
        span=SPANS[window][0],
        windows=windows(visit),
    )
    return tagged(answer, tag)


def _bar(totals: AgentAggregate | None) -> StackedBar | None:
    return None if totals is None else outcome_bar(totals.outcomes, totals.run_count)


async def _lines(visit: Visit, rows: Sequence[AgentRun]) -> list[RunLine]:
    agents = [visit.host.fleet.views.agent(row) for row in rows]
    waits = await waits_of_runs(visit, agents)
    return [await _line(visit, each, waits.get((each.run_id, each.agent_id))) for each in agents]


async def _line(visit: Visit, agent: AgentInRun, wait: Wait | None) -> RunLine:
    store, tenant = visit.host.store, visit.tenant
    found = await store.fleet_run(tenant, agent.run_id)
    if found is None:
        raise NotFound("there is no such run in the fleet")
    run = visit.host.fleet.views.run(tenant, found)
    return RunLine(
        run=agent,
        openwop_run_id=run.openwop_run_id,
        is_observed=run.source == "push",
        is_demo=is_demo(agent.run_id, agent.agent_id, agent.task),
        wait=wait,
        annotations=await store.annotations(tenant, run.openwop_run_id, None, _NOTES_OF_RUN),
    )


def _said(lines: Sequence[RunLine]) -> list[SaidOfRun]:
    """The latest judgments of the runs that are shown."""
    found = [
        SaidOfRun(note_of(row), line.openwop_run_id) for line in lines for row in line.annotations
    ]
    return sorted(found, key=lambda said: said.note.at, reverse=True)[:_NOTES_SHOWN]


def _next(visit: Visit, rows: Sequence[AgentRun]) -> str:
    if len(rows) <= PAGE_RUNS:
        return ""
    last = rows[PAGE_RUNS - 1]
    return with_query(visit, cursor=write_cursor((last.last_event, last.run_id)))


PAGES: Final = (
    Page(
        name="fleet-agent",
        path="/fleet/agents/{fleet_agent_id}",
        get=show_agent,
        scope="fleet:read",
    ),
)
