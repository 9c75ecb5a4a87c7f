"""The fleet: agents and checkpoints in a window, KAHN runs, and their lines."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from wopr.http.answers import Answer, Stream, ok
from wopr.http.exchange import Exchange
from wopr.http.ingest import NDJSON
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING, read_cursor, write_cursor
from wopr.http.runs import run_id
from wopr.protocol.errors import Refused
from wopr.protocol.fleet import (
    MOST_ROWS,
    AgentRuns,
    Aggregate,
    Flakiness,
    FleetRuns,
    RunSteps,
    Sort,
    TenantSelf,
    Window,
)
from wopr.runtime.advertise_fleet import DEFAULT_WINDOW, WINDOWS, read_window
from wopr.runtime.fleet_waits import with_interrupts

LINES_DEFAULT, LINES_MOST = 200, 1000
_SORTS: Final[dict[str, Sort]] = {"runs": "runs", "severity": "severity"}
_READS: Final = (400, 401, 403)


async def aggregate_agents(exchange: Exchange) -> Answer:
    """Show one row per agent: how often it ran, how that ended, how long it took, how sure it was.

    Busiest first; `sort=severity` puts first who needs somebody most.
    """
    asked = exchange.query.get("sort", "runs")
    sort = _SORTS.get(asked)
    if sort is None:
        raise Refused(f"sort must be one of {', '.join(_SORTS)}", field="sort")
    views = exchange.host.fleet.views
    return ok(await views.aggregate(exchange.tenant, _window(exchange), sort, _start(exchange)))


async def audit_flakiness(exchange: Exchange) -> Answer:
    """Show one row per audit checkpoint, the most undecided first."""
    views = exchange.host.fleet.views
    return ok(await views.flakiness(exchange.tenant, _window(exchange), _start(exchange)))


async def list_agent_runs(exchange: Exchange) -> Answer:
    """List an agent's runs, newest first."""
    views = exchange.host.fleet.views
    window, limit = _window(exchange), _limit(exchange)
    name = exchange.path["agent_id"]
    found = await views.agent_runs(exchange.tenant, name, window, fleet_cursor(exchange), limit + 1)
    page = found[:limit]
    return ok(
        AgentRuns(
            agent_id=name,
            window=window,
            runs=await with_interrupts(
                exchange.host.store, exchange.tenant, [views.agent(each) for each in page]
            ),
            next_cursor=(
                write_cursor((page[-1].last_event, page[-1].run_id)) if len(found) > limit else None
            ),
        )
    )


async def list_fleet_runs(exchange: Exchange) -> Answer:
    """List KAHN runs, newest first."""
    limit = _limit(exchange)
    found = await exchange.host.store.fleet_runs(exchange.tenant, fleet_cursor(exchange), limit + 1)
    page = found[:limit]
    views = exchange.host.fleet.views
    return ok(
        FleetRuns(
            runs=[views.run(exchange.tenant, each) for each in page],
            next_cursor=(
                write_cursor((page[-1].last_event, page[-1].run_id)) if len(found) > limit else None
            ),
        )
    )


async def get_fleet_run(exchange: Exchange) -> Answer:
    """Read what happened in a KAHN run, and its agents as they are now."""
    start = exchange.whole_number("line", 0)
    limit = exchange.whole_number("limit", LINES_DEFAULT, least=1, most=LINES_MOST)
    views = exchange.host.fleet.views
    found = await views.steps(exchange.tenant, run_id(exchange), start, limit)
    agents = await with_interrupts(exchange.host.store, exchange.tenant, found.agents)
    return ok(replace(found, agents=agents))


async def get_fleet_lines(exchange: Exchange) -> Stream:
    """Read the lines of a KAHN run byte for byte; also of one that retention has hidden."""
    run = await exchange.host.fleet.views.find(exchange.tenant, run_id(exchange), hidden=True)
    lines = exchange.host.store.fleet_lines(exchange.tenant, run.run_id)
    return Stream(lines, NDJSON, is_document=True)


async def export_transitions(exchange: Exchange) -> Stream:
    """Export every KAHN line byte for byte, run by run, those that retention has hidden too."""
    return Stream(exchange.host.fleet.views.export(exchange.tenant), NDJSON, is_document=True)


async def get_tenant_self(exchange: Exchange) -> Answer:
    """Read how many runs the fleet holds of the caller's tenant, and how much it may push now."""
    return ok(
        TenantSelf(
            agent_archived_runs=await exchange.host.store.fleet_size(exchange.tenant),
            rate_limit=exchange.host.fleet.pushes.snapshot(exchange.tenant),
        )
    )


def _window(exchange: Exchange) -> Window:
    return read_window(exchange.query.get("window", DEFAULT_WINDOW))


def _start(exchange: Exchange) -> int:
    return exchange.whole_number("start", 0)


def _limit(exchange: Exchange) -> int:
    return exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)


def fleet_cursor(exchange: Exchange) -> tuple[int, str] | None:
    """Where a list of runs goes on."""
    # A producer's clock may be before all others.
    return read_cursor(exchange.query.get("cursor"), least=-(2**63))


WINDOW = Parameter(
    name="window",
    description="One of 24h, 7d, all: runs whose last event is not older.",
    schema={"type": "string", "enum": list(WINDOWS), "default": DEFAULT_WINDOW},
)
START = Parameter(
    name="start",
    description=f"How many rows to skip. An answer has at most {MOST_ROWS}; `next_start` leads on.",
    schema={"type": "integer", "minimum": 0, "default": 0},
)

OPERATIONS = (
    Operation(
        name="aggregateAgents",
        method="GET",
        path="/api/agent-runs/aggregate",
        handler=aggregate_agents,
        summary="Show how every agent is doing",
        tag="fleet",
        scope="fleet:read",
        answer=Aggregate,
        errors=_READS,
        parameters=(
            WINDOW,
            Parameter(
                name="sort",
                description="`runs`, the busiest first, or `severity`.",
                schema={"type": "string", "enum": list(_SORTS), "default": "runs"},
            ),
            START,
        ),
        is_extension=True,
    ),
    Operation(
        name="auditFlakiness",
        method="GET",
        path="/api/audit-checkpoints/flakiness",
        handler=audit_flakiness,
        summary="Show how undecided every audit checkpoint is",
        tag="fleet",
        scope="fleet:read",
        answer=Flakiness,
        errors=_READS,
        parameters=(WINDOW, START),
        is_extension=True,
    ),
    Operation(
        name="listAgentRuns",
        method="GET",
        path="/api/agents/{agent_id}/agent-runs",
        handler=list_agent_runs,
        summary="List an agent's runs",
        tag="fleet",
        scope="fleet:read",
        answer=AgentRuns,
        errors=(*_READS, 404),
        parameters=(WINDOW, *PAGING),
        is_extension=True,
    ),
    Operation(
        name="listFleetRuns",
        method="GET",
        path="/api/runs",
        handler=list_fleet_runs,
        summary="List KAHN runs",
        tag="fleet",
        scope="fleet:read",
        answer=FleetRuns,
        errors=_READS,
        parameters=PAGING,
        is_extension=True,
    ),
    Operation(
        name="getFleetRun",
        method="GET",
        path="/api/runs/{run_id}",
        handler=get_fleet_run,
        summary="Read what happened in a KAHN run",
        tag="fleet",
        scope="fleet:read",
        answer=RunSteps,
        errors=(*_READS, 404),
        parameters=(
            Parameter(
                name="line",
                description="From which line on, counted from 0.",
                schema={"type": "integer", "minimum": 0, "default": 0},
            ),
            Parameter(
                name="limit",
                description="How many lines at most.",
                schema={
                    "type": "integer",
                    "minimum": 1,
                    "maximum": LINES_MOST,
                    "default": LINES_DEFAULT,
                },
            ),
        ),
        is_extension=True,
    ),
    Operation(
        name="getFleetLines",
        method="GET",
        path="/api/runs/{run_id}/transitions",
        handler=get_fleet_lines,
        summary="Read the lines of a KAHN run byte for byte",
        tag="fleet",
        scope="fleet:read",
        content_type=NDJSON,
        errors=(401, 403, 404),
        is_extension=True,
        read="sensitive",
    ),
    Operation(
        name="exportTransitions",
        method="GET",
        path="/v1/export/transitions",
        handler=export_transitions,
        summary="Export all KAHN lines",
        tag="fleet",
        scope="fleet:read",
        content_type=NDJSON,
        errors=(401, 403),
        is_extension=True,
        read="sensitive",
    ),
    Operation(
        name="getTenantSelf",
        method="GET",
        path="/api/self/tenant",
        handler=get_tenant_self,
        summary="Read how much the caller's tenant may push",
        tag="fleet",
        scope="",
        answer=TenantSelf,
        errors=(401,),
        is_extension=True,
    ),
)
