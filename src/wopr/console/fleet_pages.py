"""The fleet: every agent and every audit checkpoint in a window, and all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import urlencode

from wopr.console.fleet_charts import Spark, StackedBar, audit_bar, outcome_bar, sparkline
from wopr.console.fleet_frame import SPANS, Choice, fleet_page, window_of, windows, with_query
from wopr.console.fleet_waiting import Wait, waits_by_agent
from wopr.console.freshness import list_tag, tagged, unchanged
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.fleet import fleet_cursor
from wopr.http.paging import write_cursor
from wopr.protocol.documents import Unset
from wopr.protocol.errors import Refused
from wopr.protocol.fleet import (
    MOST_ROWS,
    AgentAggregate,
    AgentInRun,
    Bucket,
    CheckpointAggregate,
    RunInFleet,
    Sort,
)
from wopr.protocol.times import to_millis
from wopr.runtime.fleet_rules import convergence_bucket, is_demo

PAGE_RUNS: Final = 50
PAGE_ROWS: Final = 200
OUTCOMES: Final = ("converged", "partial", "escaped", "aborted", "unknown")
RESULTS: Final = ("pass", "fail", "warn")
# What each order is called, what it means, and its key.
_ORDERS: Final[dict[Sort, tuple[str, str, str]]] = {
    "severity": ("severity", "who needs somebody most comes first", "s"),
    "runs": ("busiest", "who has run most comes first", "b"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """One agent of the list."""

    agent: AgentAggregate
    bar: StackedBar
    spark: Spark | None
    bucket: Bucket | None
    last_seen: int
    why: str
    wait: Wait | None


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One checkpoint of the list."""

    checkpoint: CheckpointAggregate
    bar: StackedBar


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of the list with its agents."""

    run: RunInFleet
    agents: Sequence[AgentInRun]
    is_demo: bool


async def list_agents(visit: Visit) -> Answer:
    """Show one row per agent."""
    window, sort = window_of(visit), _sort(visit)
    views = visit.host.fleet.views
    start = visit.exchange.whole_number("start", 0)
    block, place = _block(start)
    read = await views.aggregate(visit.tenant, window, sort, block)
    found = read.agents[place : place + PAGE_ROWS]
    # In a larger fleet an agent that is not here may be on another page.
    is_whole = not block and isinstance(read.next_start, Unset)
    waits = await waits_by_agent(visit)
    tag = list_tag(visit, (found, list(waits.values())), is_moving=bool(waits))
    known = unchanged(visit, tag)
    if known is not None:
        return known
    most = max((agent.run_count for agent in read.agents), default=0)
    here = {agent.agent_id for agent in read.agents}
    answer = await fleet_page(
        visit,
        "fleet.html",
        lines=[_agent_line(agent, most, waits.get(agent.agent_id)) for agent in found],
        elsewhere=[wait for wait in waits.values() if is_whole and wait.agent_id not in here],
        next_page=_next(visit, start, len(read.agents), read.next_start),
        is_empty=not await visit.host.store.fleet_size(visit.tenant),
        span=SPANS[window][0],
        windows=windows(visit),
        orders=_orders(visit, sort),
        outcomes=OUTCOMES,
    )
    return tagged(answer, tag)


def _block(start: int) -> tuple[int, int]:
    """Where the answer of the store begins that has this row, and the row's place in it."""
    place = start % MOST_ROWS
    return start - place, place


def _next(visit: Visit, start: int, rows: int, next_start: int | Unset) -> str:
    """The link to the next page; empty on the last."""
    has_more = start % MOST_ROWS + PAGE_ROWS < rows or not isinstance(next_start, Unset)
    return with_query(visit, start=str(start + PAGE_ROWS)) if has_more else ""


def _sort(visit: Visit) -> Sort:
    asked = visit.query.get("sort", "severity")
    for known in _ORDERS:
        if known == asked:
            return known
    raise Refused(f"sort must be one of {', '.join(get_args(Sort))}", field="sort")


def _orders(visit: Visit, current: Sort) -> list[Choice]:
    return [
        Choice(
            name=name,
            title=title,
            key=key,
            href=with_query(visit, sort=sort),
            is_current=sort == current,
        )
        for sort, (name, title, key) in _ORDERS.items()
    ]


def _agent_line(agent: AgentAggregate, most: int, wait: Wait | None) -> AgentLine:
    mean = agent.mean_convergence
    return AgentLine(
        agent=agent,
        bar=outcome_bar(agent.outcomes, most),
        spark=sparkline(agent.convergence_series),
        bucket=None if mean is None else convergence_bucket(mean),
        last_seen=to_millis(agent.last_seen),
        why=_why(agent),
        wait=wait,
    )


def _why(agent: AgentAggregate) -> str:
    """What the severity is made of."""
    outcomes = agent.outcomes
    failed = outcomes.escaped + outcomes.aborted
    parts = (
        "the last run fell back" if agent.regressed else "",
        f"{failed} escaped or aborted" if failed else "",
        f"{outcomes.partial} partial" if outcomes.partial else "",
        f"{agent.in_flight} under way" if agent.in_flight else "",
    )
    return ", ".join(part for part in parts if part) or "nothing to look at"


async def list_audits(visit: Visit) -> Answer:
    """Show one row per audit checkpoint."""
    window = window_of(visit)
    start = visit.exchange.whole_number("start", 0)
    block, place = _block(start)
    read = await visit.host.fleet.views.flakiness(visit.tenant, window, block)
    found = read.checkpoints[place : place + PAGE_ROWS]
    tag = list_tag(visit, found, is_moving=False)
    known = unchanged(visit, tag)
    if known is not None:
        return known
    most = max((each.total for each in read.checkpoints), default=0)
    answer = await fleet_page(
        visit,
        "fleet_audits.html",
        lines=[CheckpointLine(each, audit_bar(each, most)) for each in found],
        next_page=_next(visit, start, len(read.checkpoints), read.next_start),
        is_empty=not await visit.host.store.fleet_size(visit.tenant),
        span=SPANS[window][0],
        windows=windows(visit),
        results=RESULTS,
    )
    return tagged(answer, tag)


async def list_fleet_runs(visit: Visit) -> Answer:
    """Show all runs, the newest first."""
    after = fleet_cursor(visit.exchange)
    found = await visit.host.store.fleet_runs(visit.tenant, after, PAGE_RUNS + 1)
    rows = found[:PAGE_RUNS]
    tag = list_tag(visit, rows, is_moving=False)
    known = unchanged(visit, tag)
    if known is not None:
        return known
    next_page = ""
    if len(found) > PAGE_RUNS:
        cursor = write_cursor((rows[-1].last_event, rows[-1].run_id))
        next_page = "?" + urlencode({"cursor": cursor})
    views = visit.host.fleet.views
    lines = [await _run_line(visit, views.run(visit.tenant, row)) for row in rows]
    answer = await fleet_page(
        visit, "fleet_runs.html", lines=lines, next_page=next_page, is_live=after is None
    )
    return tagged(answer, tag)


async def _run_line(visit: Visit, run: RunInFleet) -> RunLine:
    views = visit.host.fleet.views
    rows = await visit.host.store.fleet_run_agents(visit.tenant, run.run_id)
    agents = [views.agent(each) for each in rows]
    return RunLine(run, agents, any(is_demo(a.run_id, a.agent_id, a.task) for a in agents))


PAGES: Final = (
    Page(name="fleet", path="/fleet", get=list_agents, scope="fleet:read"),
    Page(name="fleet-audits", path="/fleet/audits", get=list_audits, scope="fleet:read"),
    Page(name="fleet-runs", path="/fleet/runs", get=list_fleet_runs, scope="fleet:read"),
)
