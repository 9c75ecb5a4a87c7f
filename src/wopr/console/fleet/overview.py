"""The fleet: agents, audit checkpoints and runs in a time window; the demo data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import urlencode

from wopr.console.fleet.charts import Spark, StackedBar, audit_bar, outcome_bar, sparkline
from wopr.console.fleet.shared import (
    WINDOW_NAMES,
    AgentWait,
    ViewLink,
    fleet_page,
    waits_by_agent,
    window_of,
    windows,
    with_query,
)
from wopr.console.page import Page, PageRequest, list_etag, not_modified_response, with_etag
from wopr.http.operation import write_cursor
from wopr.http.response import Response
from wopr.http.routes.kahn import fleet_cursor
from wopr.kahn.demo.generator import is_demo
from wopr.kahn.demo.tenant import DEMO_AGENTS, DEMO_DAYS
from wopr.kahn.statistics import convergence_bucket
from wopr.protocol.documents import Unset, to_millis
from wopr.protocol.errors import Refused
from wopr.protocol.resources.fleet import (
    MAX_ROWS,
    AgentAggregate,
    AgentInRun,
    Bucket,
    CheckpointAggregate,
    RunInFleet,
    Sort,
)

PAGE_RUNS: Final = 50
PAGE_ROWS: Final = 200
OUTCOMES: Final = ("converged", "partial", "escaped", "aborted", "unknown")
RESULTS: Final = ("pass", "fail", "warn")
# The name of each order, its description and its keyboard shortcut.
_ORDERS: Final[dict[Sort, tuple[str, str, str]]] = {
    "severity": ("severity", "agents that need the most attention first", "s"),
    "runs": ("busiest", "most runs first", "b"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """One agent of the list."""

    agent: AgentAggregate
    bar: StackedBar
    spark: Spark | None
    bucket: Bucket | None
    last_seen: int
    severity_reasons: str
    wait: AgentWait | None


@dataclass(frozen=True, slots=True)
class FleetCheckpointLine:
    """One checkpoint of the list."""

    checkpoint: CheckpointAggregate
    bar: StackedBar


@dataclass(frozen=True, slots=True)
class FleetRunLine:
    """One run of the list with its agents."""

    run: RunInFleet
    agents: Sequence[AgentInRun]
    is_demo: bool


async def list_agents(request: PageRequest) -> Response:
    """Show one row per agent."""
    window, sort = window_of(request), _sort(request)
    views = request.host.fleet.views
    start = request.http.whole_number("start", 0)
    block, place = _block(start)
    read = await views.aggregate(request.tenant, window, sort, block)
    found = read.agents[place : place + PAGE_ROWS]
    # In a larger fleet a missing agent may be on another page.
    is_whole = not block and isinstance(read.next_start, Unset)
    waits = await waits_by_agent(request)
    tag = list_etag(request, (found, list(waits.values())), shows_durations=bool(waits))
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    most = max((agent.run_count for agent in read.agents), default=0)
    here = {agent.agent_id for agent in read.agents}
    response = await fleet_page(
        request,
        "fleet.html",
        lines=[_agent_line(agent, most, waits.get(agent.agent_id)) for agent in found],
        elsewhere=[wait for wait in waits.values() if is_whole and wait.agent_id not in here],
        next_page=_next_page(request, start, len(read.agents), read.next_start),
        is_empty=not await request.host.store.fleet_size(request.tenant),
        window_name=WINDOW_NAMES[window][0],
        windows=windows(request),
        orders=_orders(request, sort),
        outcomes=OUTCOMES,
    )
    return with_etag(response, tag)


def _block(start: int) -> tuple[int, int]:
    """Return the start of the store's page with this row, and the row's position in that page."""
    place = start % MAX_ROWS
    return start - place, place


def _next_page(request: PageRequest, start: int, rows: int, next_start: int | Unset) -> str:
    """Return the link to the next page; empty on the last page."""
    has_more = start % MAX_ROWS + PAGE_ROWS < rows or not isinstance(next_start, Unset)
    return with_query(request, start=str(start + PAGE_ROWS)) if has_more else ""


def _sort(request: PageRequest) -> Sort:
    wanted = request.query.get("sort", "severity")
    for known in _ORDERS:
        if known == wanted:
            return known
    raise Refused(f"sort must be one of {', '.join(get_args(Sort))}", field="sort")


def _orders(request: PageRequest, current: Sort) -> list[ViewLink]:
    return [
        ViewLink(
            name=name,
            title=title,
            key=key,
            href=with_query(request, sort=sort),
            is_current=sort == current,
        )
        for sort, (name, title, key) in _ORDERS.items()
    ]


def _agent_line(agent: AgentAggregate, most: int, wait: AgentWait | None) -> AgentLine:
    mean = agent.mean_convergence
    return AgentLine(
        agent=agent,
        bar=outcome_bar(agent.outcomes, most),
        spark=sparkline(agent.convergence_series),
        bucket=None if mean is None else convergence_bucket(mean),
        last_seen=to_millis(agent.last_seen),
        severity_reasons=_severity_reasons(agent),
        wait=wait,
    )


def _severity_reasons(agent: AgentAggregate) -> str:
    """Return the reasons for the severity as text."""
    outcomes = agent.outcomes
    failed = outcomes.escaped + outcomes.aborted
    parts = (
        "the last run regressed" if agent.regressed else "",
        f"{failed} escaped or aborted" if failed else "",
        f"{outcomes.partial} partial" if outcomes.partial else "",
        f"{agent.in_flight} in progress" if agent.in_flight else "",
    )
    return ", ".join(part for part in parts if part) or "no problems"


async def list_audits(request: PageRequest) -> Response:
    """Show one row per audit checkpoint."""
    window = window_of(request)
    start = request.http.whole_number("start", 0)
    block, place = _block(start)
    read = await request.host.fleet.views.flakiness(request.tenant, window, block)
    found = read.checkpoints[place : place + PAGE_ROWS]
    tag = list_etag(request, found, shows_durations=False)
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    most = max((each.total for each in read.checkpoints), default=0)
    response = await fleet_page(
        request,
        "fleet_audits.html",
        lines=[FleetCheckpointLine(each, audit_bar(each, most)) for each in found],
        next_page=_next_page(request, start, len(read.checkpoints), read.next_start),
        is_empty=not await request.host.store.fleet_size(request.tenant),
        window_name=WINDOW_NAMES[window][0],
        windows=windows(request),
        results=RESULTS,
    )
    return with_etag(response, tag)


async def list_fleet_runs(request: PageRequest) -> Response:
    """Show all runs, the newest first."""
    after = fleet_cursor(request.http)
    found = await request.host.store.fleet_runs(request.tenant, after, PAGE_RUNS + 1)
    rows = found[:PAGE_RUNS]
    tag = list_etag(request, rows, shows_durations=False)
    not_modified = not_modified_response(request, tag)
    if not_modified is not None:
        return not_modified
    next_page = ""
    if len(found) > PAGE_RUNS:
        cursor = write_cursor((rows[-1].last_event, rows[-1].run_id))
        next_page = "?" + urlencode({"cursor": cursor})
    views = request.host.fleet.views
    lines = [await _run_line(request, views.run_document(request.tenant, row)) for row in rows]
    response = await fleet_page(
        request, "fleet_runs.html", lines=lines, next_page=next_page, is_live=after is None
    )
    return with_etag(response, tag)


async def _run_line(request: PageRequest, run: RunInFleet) -> FleetRunLine:
    views = request.host.fleet.views
    rows = await request.host.store.fleet_run_agents(request.tenant, run.run_id)
    agents = [views.agent_document(each) for each in rows]
    return FleetRunLine(run, agents, any(is_demo(a.run_id, a.agent_id, a.task) for a in agents))


_LOAD, _REMOVE = "load", "remove"


async def ask_demo(request: PageRequest) -> Response:
    """Show what the demo contains, with a button to load or remove it."""
    return await request.page(
        "fleet_demo.html",
        is_loaded=await request.host.fleet.demo.is_loaded(request.tenant),
        agents=DEMO_AGENTS,
        days=DEMO_DAYS,
        kept_days=request.host.settings.fleet_keep_days,
    )


async def change_demo(request: PageRequest) -> Response:
    """Load or remove the demo. Does nothing if this was already done."""
    what = (await request.form()).choice("do", (_LOAD, _REMOVE))
    is_loaded = await request.host.fleet.demo.is_loaded(request.tenant)
    if what == _LOAD and not is_loaded:
        await _load(request)
    if what == _REMOVE:
        await _remove(request)
    return request.redirect(f"/fleet?done=demo-{what}{'ed' if what == _LOAD else 'd'}")


async def _load(request: PageRequest) -> None:
    fleet = request.host.fleet
    fleet.pushes.take(request.tenant)
    count = await fleet.demo.load(request.tenant)
    await _record(request, "fleet.demo.load", count)


async def _remove(request: PageRequest) -> None:
    removed = await request.host.fleet.demo.remove(request.tenant)
    await _record(request, "fleet.demo.remove", removed)


async def _record(request: PageRequest, action: str, count: int) -> None:
    by = request.caller.key_id
    await request.host.audit.record(request.tenant, by, action, "fleet runs", count=count)


PAGES: Final = (
    Page(name="fleet", path="/fleet", get=list_agents, scope="fleet:read"),
    Page(name="fleet-audits", path="/fleet/audits", get=list_audits, scope="fleet:read"),
    Page(name="fleet-runs", path="/fleet/runs", get=list_fleet_runs, scope="fleet:read"),
    Page(
        name="fleet-demo",
        path="/fleet/demo",
        get=ask_demo,
        post=change_demo,
        scope="fleet:ingest",
        action="fleet.demo",
    ),
)
