"""Agents: the inventory, and one agent with its tools, thresholds, versions, runs and feedback."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from wopr.console.definitions.workflows import TEXT, pretty_source, recent_feedback, recent_runs
from wopr.console.page import Page, PageRequest
from wopr.console.static_files import SAFE_HEADERS
from wopr.http.response import Response
from wopr.protocol.documents import Unset, encode
from wopr.protocol.workflow import WorkflowDefinition
from wopr.store.port import SHARED, Workflows

# To find the workflows that use an agent: the number of workflows searched, the number read at
# once, and the number shown.
_SEARCHED: Final = 1000
_AT_ONCE: Final = 10
_SHOWN: Final = 20
_WORKFLOW: Final = msgspec.json.Decoder(WorkflowDefinition)
# A manifest contains the agent's prompt. Only keys that may write manifests may read it.
WRITE: Final = "agents:write"


async def list_agents(request: PageRequest) -> Response:
    """List the agents that the tenant can use."""
    inventory = await request.host.agents.inventory(request.tenant)
    return await request.page("agents.html", agents=inventory.agents)


async def show_agent(request: PageRequest) -> Response:
    """Show one agent in one of its versions."""
    agents, name = request.host.agents, request.http.path["agent_id"]
    installed = await agents.agent(request.tenant, name, request.query.get("version"))
    workflows = await _workflows_with(request, name)
    services = request.host.advancer.services
    return await request.page(
        "agent.html",
        agent=agents.entry(installed),
        installed=installed,
        threshold=services.threshold(request.tenant, name, {}, installed.manifest.version),
        versions=await agents.versions(request.tenant, name),
        query="?" + urlencode({"version": installed.manifest.version}),
        source=pretty_source(encode(installed.manifest)) if request.may(WRITE) else "",
        workflows=workflows,
        runs=await recent_runs(request, workflows),
        feedback=await recent_feedback(request, agent_id=name),
    )


async def show_manifest(request: PageRequest) -> Response:
    """Return the manifest as text to copy."""
    installed = await request.host.agents.agent(
        request.tenant, request.http.path["agent_id"], request.query.get("version")
    )
    body = pretty_source(encode(installed.manifest)).encode()
    return Response(200, body, TEXT, dict(SAFE_HEADERS))


async def _workflows_with(request: PageRequest, agent_id: str) -> list[str]:
    """Return the first workflows, by id, whose newest version uses the agent."""
    found = set[str]()
    async with request.host.heavy_reads.slot(request.tenant):
        for owner in (request.tenant, SHARED):
            found |= await workflows_using_agent(request.host.store, owner, agent_id)
    return sorted(found)[:_SHOWN]


async def workflows_using_agent(store: Workflows, owner: str, agent_id: str) -> set[str]:
    """Return the first workflows of one owner that use the agent. Reads few definitions at once."""
    encoded_id, found, after = encode(agent_id), set[str](), None
    for _ in range(0, _SEARCHED, _AT_ONCE):
        rows = await store.workflows(owner, after, _AT_ONCE)
        for row in rows:
            # Most definitions do not contain the id, so they need not be decoded.
            if encoded_id in row.body and _uses_agent(_WORKFLOW.decode(row.body), agent_id):
                found.add(row.workflow_id)
        if len(rows) < _AT_ONCE or len(found) >= _SHOWN:
            break
        after = rows[-1].workflow_id
    return found


def _uses_agent(definition: WorkflowDefinition, agent_id: str) -> bool:
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
