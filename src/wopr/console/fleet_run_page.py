"""One KAHN run: its agents as they are now, in which status each was when, and line by line."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from wopr.console.fleet_frame import fleet_page
from wopr.console.fleet_lanes import StatusLanes, status_lanes
from wopr.console.fleet_steps import Step, steps_of
from wopr.console.fleet_waiting import waits_of_runs
from wopr.console.freshness import list_tag, tagged, unchanged
from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.protocol.fleet import RunSteps
from wopr.protocol.times import to_millis
from wopr.runtime.fleet_rules import is_demo

PAGE_LINES: Final = 400


async def show_fleet_run(visit: Visit) -> Answer:
    """Show one run."""
    start = visit.exchange.whole_number("line", 0)
    name = visit.exchange.path["fleet_run_id"]
    found = await visit.host.fleet.views.steps(visit.tenant, name, start, PAGE_LINES)
    # The archive holds the producer's bytes; a page shows no secret.
    found = replace(found, events=[visit.exchange.redactor.json(each) for each in found.events])
    waits = await waits_of_runs(visit, found.agents)
    agents = [replace(agent, waiting_s=None) for agent in found.agents]
    tag = list_tag(visit, (found.run, agents, list(waits.values())), is_moving=bool(waits))
    known = unchanged(visit, tag)
    if known is not None:
        return known
    steps = steps_of(found.events, start, to_millis(found.run.started))
    answer = await fleet_page(
        visit,
        "fleet_run.html",
        run=found.run,
        agents=found.agents,
        waits=waits,
        steps=steps,
        findings=[each for each in found.findings or [] if each.level != "info"],
        lanes=_lanes(found, steps, start),
        first_line=start,
        next_line=found.next_line,
        page_lines=PAGE_LINES,
        is_demo=any(is_demo(a.run_id, a.agent_id, a.task) for a in found.agents),
    )
    return tagged(answer, tag)


def _lanes(found: RunSteps, steps: list[Step], start: int) -> StatusLanes | None:
    """The run over time; only a run that is on the page as a whole can be drawn."""
    if start or found.next_line is not None:
        return None
    return status_lanes(found.events, steps, to_millis(found.run.last_event))


PAGES: Final = (
    Page(
        name="fleet-run",
        path="/fleet/runs/{fleet_run_id}",
        get=show_fleet_run,
        scope="fleet:read",
        read="sensitive",
    ),
)
