"""Which agents of the fleet wait for somebody, since when, and where they can be answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from wopr.console.visit import Visit
from wopr.protocol.fleet import AgentInRun
from wopr.protocol.times import to_millis
from wopr.runtime.fleet_waits import with_interrupts

# Of so many that wait, those that have waited longest are told.
MOST_WAITING: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The longest wait of an agent, and how many others it has."""

    agent_id: str
    run_id: str
    since: int
    href: str
    where: str
    others: int = 0


async def waits_by_agent(visit: Visit) -> dict[str, Wait]:
    """The longest wait of every agent that waits, the longest of all first."""
    found = await visit.host.fleet.views.waiting(visit.tenant, MOST_WAITING)
    longest: dict[str, AgentInRun] = {}
    counts: dict[str, int] = {}
    for each in found:
        longest.setdefault(each.agent_id, each)
        counts[each.agent_id] = counts.get(each.agent_id, 0) + 1
    waits = await waits_of_runs(visit, longest.values())
    return {
        wait.agent_id: replace(wait, others=counts[wait.agent_id] - 1) for wait in waits.values()
    }


async def waits_of_runs(visit: Visit, agents: Iterable[AgentInRun]) -> dict[tuple[str, str], Wait]:
    """What each of these waits for, by run and agent; those that do not wait are left out."""
    store, waiting = visit.host.store, [each for each in agents if each.waiting_since is not None]
    told: Sequence[AgentInRun] = await with_interrupts(store, visit.tenant, waiting)
    return {(each.run_id, each.agent_id): await _wait(visit, each) for each in told}


async def _wait(visit: Visit, agent: AgentInRun) -> Wait:
    href, where = await _place(visit, agent)
    return Wait(
        agent_id=agent.agent_id,
        run_id=agent.run_id,
        since=to_millis(agent.waiting_since or agent.last_event),
        href=href,
        where=where,
    )


async def _place(visit: Visit, agent: AgentInRun) -> tuple[str, str]:
    """Where to answer: in the inbox, or outside, where nobody here can."""
    name = quote(agent.run_id, safe="")
    run = await visit.host.store.fleet_run(visit.tenant, agent.run_id)
    if run is None or run.source != "host":
        return f"/fleet/runs/{name}", "answered outside"
    can_answer = visit.has("/inbox") and visit.may("approvals:respond")
    if agent.openwop_interrupt_id is not None and can_answer:
        return f"/inbox?runId={name}", "answer"
    return (f"/runs/{name}" if visit.may("runs:read") else f"/fleet/runs/{name}"), "see the run"
