"""Shared parts of the fleet pages: time windows, links, and agents that wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlencode

from wopr.console.page import PageRequest
from wopr.http.response import Response
from wopr.kahn.demo.tenant import DEMO_AGENTS
from wopr.kahn.statistics import DEFAULT_WINDOW, WINDOWS, read_window
from wopr.kahn.views import add_interrupts
from wopr.protocol.documents import to_millis
from wopr.protocol.resources.fleet import AgentInRun, Window

# The name of each window on the page, and its keyboard shortcut.
WINDOW_NAMES: Final[dict[Window, tuple[str, str]]] = {
    "24h": ("the last 24 hours", "d"),
    "7d": ("the last 7 days", "w"),
    "all": ("all time", "a"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLink:
    """A link to the same page with another window or order."""

    name: str
    title: str
    key: str
    href: str
    is_current: bool


def window_of(request: PageRequest) -> Window:
    """Return the window of the query. Raises `Refused` for an unknown window."""
    return read_window(request.query.get("window", DEFAULT_WINDOW))


def windows(request: PageRequest) -> list[ViewLink]:
    """Return links to this page for each window."""
    current = window_of(request)
    return [
        ViewLink(
            name=name,
            title=WINDOW_NAMES[name][0],
            key=WINDOW_NAMES[name][1],
            href=with_query(request, window=name),
            is_current=name == current,
        )
        for name in WINDOWS
    ]


def with_query(request: PageRequest, **changes: str) -> str:
    """Return the query of this page with changes, starting at the first page of the list."""
    kept = {
        name: value
        for name, value in request.query.items()
        if name not in ("cursor", "done", "start")
    }
    return "?" + urlencode(kept | changes)


async def fleet_page(request: PageRequest, template: str, **values: object) -> Response:
    """Render a page of the fleet."""
    has_demo = await request.host.fleet.demo.is_loaded(request.tenant)
    agents = DEMO_AGENTS if has_demo else ()
    return await request.page(template, demo_agents=agents, **values)


# Only the agents that have waited longest are shown.
MAX_WAITING: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWait:
    """The longest wait of an agent, and the number of its other waits."""

    agent_id: str
    run_id: str
    since: int
    href: str
    where: str
    others: int = 0


async def waits_by_agent(request: PageRequest) -> dict[str, AgentWait]:
    """Return the longest wait of each waiting agent, the longest first."""
    found = await request.host.fleet.views.waiting_agents(request.tenant, MAX_WAITING)
    longest: dict[str, AgentInRun] = {}
    counts: dict[str, int] = {}
    for each in found:
        longest.setdefault(each.agent_id, each)
        counts[each.agent_id] = counts.get(each.agent_id, 0) + 1
    waits = await waits_of_runs(request, longest.values())
    return {
        wait.agent_id: replace(wait, others=counts[wait.agent_id] - 1) for wait in waits.values()
    }


async def waits_of_runs(
    request: PageRequest, agents: Iterable[AgentInRun]
) -> dict[tuple[str, str], AgentWait]:
    """Return what the waiting agents wait for, by run and agent."""
    store, waiting = request.host.store, [each for each in agents if each.waiting_since is not None]
    found: Sequence[AgentInRun] = await add_interrupts(store, request.tenant, waiting)
    return {(each.run_id, each.agent_id): await _wait(request, each) for each in found}


async def _wait(request: PageRequest, agent: AgentInRun) -> AgentWait:
    href, where = await _answer_link(request, agent)
    return AgentWait(
        agent_id=agent.agent_id,
        run_id=agent.run_id,
        since=to_millis(agent.waiting_since or agent.last_event),
        href=href,
        where=where,
    )


async def _answer_link(request: PageRequest, agent: AgentInRun) -> tuple[str, str]:
    """Return the link and text for the place where a person can answer the agent."""
    name = quote(agent.run_id, safe="")
    run = await request.host.store.fleet_run(request.tenant, agent.run_id)
    if run is None or run.source != "host":
        return f"/fleet/runs/{name}", "answered in the other system"
    can_answer = request.can_open("/inbox") and request.may("approvals:respond")
    if agent.openwop_interrupt_id is not None and can_answer:
        return f"/inbox?runId={name}", "answer"
    return (f"/runs/{name}" if request.may("runs:read") else f"/fleet/runs/{name}"), "show the run"
