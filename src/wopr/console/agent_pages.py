"""Agents: the inventory, and one agent with its tools, thresholds, versions, runs and feedback."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from wopr.console.headers import SAFE_HEADERS
from wopr.console.page import Page
from wopr.console.recent import recent_feedback, recent_runs
from wopr.console.visit import Visit
from wopr.console.workflow_pages import TEXT, pretty_source
from wopr.http.answers import Answer
from wopr.protocol.documents import Unset, encode
from wopr.protocol.workflow import WorkflowDefinition
from wopr.store.port import SHARED, Workflows

# So many workflows are looked through for those that name an agent, so many at once, and so many
# of them shown.
_SEARCHED: Final = 1000
_AT_ONCE: Final = 10
_SHOWN: Final = 20
_WORKFLOW: Final = msgspec.json.Decoder(WorkflowDefinition)
# A manifest holds the agent's prompt, which the inventory keeps back: it is for those who write it.
WRITE: Final = "agents:write"


async def list_agents(visit: Visit) -> Answer:
    """List the agents that the tenant can use."""
    inventory = await visit.host.agents.inventory(visit.tenant)
    return await visit.page("agents.html", agents=inventory.agents)


async def show_agent(visit: Visit) -> Answer:
    """Show one agent in one of its versions."""
    agents, name = visit.host.agents, visit.exchange.path["agent_id"]
    installed = await agents.agent(visit.tenant, name, visit.query.get("version"))
    workflows = await _workflows_with(visit, name)
    services = visit.host.advancer.services
    return await visit.page(
        "agent.html",
        agent=agents.entry(installed),
        installed=installed,
        threshold=services.threshold(visit.tenant, name, {}, installed.manifest.version),
        versions=await agents.versions(visit.tenant, name),
        query="?" + urlencode({"version": installed.manifest.version}),
        source=pretty_source(encode(installed.manifest)) if visit.may(WRITE) else "",
        workflows=workflows,
        runs=await recent_runs(visit, workflows),
        feedback=await recent_feedback(visit, agent_id=name),
    )


async def show_manifest(visit: Visit) -> Answer:
    """The manifest as text to copy."""
    installed = await visit.host.agents.agent(
        visit.tenant, visit.exchange.path["agent_id"], visit.query.get("version")
    )
    body = pretty_source(encode(installed.manifest)).encode()
    return Answer(200, body, TEXT, dict(SAFE_HEADERS))


async def _workflows_with(visit: Visit, agent_id: str) -> list[str]:
    """The first workflows, by id, whose newest version names the agent."""
    found = set[str]()
    async with visit.host.heavy_reads.turn(visit.tenant):
        for owner in (visit.tenant, SHARED):
            found |= await workflows_naming(visit.host.store, owner, agent_id)
    return sorted(found)[:_SHOWN]


async def workflows_naming(store: Workflows, owner: str, agent_id: str) -> set[str]:
    """The first workflows of one owner that name the agent; few definitions are held at once."""
    written, found, after = encode(agent_id), set[str](), None
    for _ in range(0, _SEARCHED, _AT_ONCE):
        rows = await store.workflows(owner, after, _AT_ONCE)
        for row in rows:
            # Most definitions are passed over without being decoded.
            if written in row.body and _names(_WORKFLOW.decode(row.body), agent_id):
                found.add(row.workflow_id)
        if len(rows) < _AT_ONCE or len(found) >= _SHOWN:
            break
        after = rows[-1].workflow_id
    return found


def _names(definition: WorkflowDefinition, agent_id: str) -> bool:
    pinned = (node.agent for node in definition.nodes)
    is_pinned = any(not isinstance(each, Unset) and each.agent_id == agent_id for each in pinned)
    return is_pinned or definition.metadata.requires_agent_id == agent_id


PAGES: Final = (
    Page(name="agents", path="/agents", get=list_agents, scope="manifest:read"),
    Page(name="agent", path="/agents/{agent_id}", get=show_agent, scope="manifest:read"),
    Page(
        name="manifest",
        path="/agents/{agent_id}/manifest",
        get=show_manifest,
        scope=WRITE,
    ),
)
