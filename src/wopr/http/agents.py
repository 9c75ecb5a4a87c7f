"""Agents: the inventory of those installed, and how one is installed."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange, decode_any
from wopr.http.operation import Operation, Parameter
from wopr.protocol.manifests import AgentInventoryEntry, AgentInventoryResponse, AgentManifest


async def list_agents(exchange: Exchange) -> Answer:
    """List every agent that the tenant can use, by id."""
    return ok(await exchange.host.agents.inventory(exchange.tenant))


async def get_agent(exchange: Exchange) -> Answer:
    """Read one agent of the inventory."""
    agents = exchange.host.agents
    found = await agents.agent(
        exchange.tenant, exchange.path["agent_id"], exchange.query.get("version")
    )
    return ok(agents.entry(found))


async def register_agent(exchange: Exchange) -> Answer:
    """Install a manifest, or a new version of one; the answer is its line of the inventory."""
    document = decode_any(await exchange.raw_document())
    agents = exchange.host.agents
    installed, is_new = await agents.register(exchange.tenant, document)
    return ok(agents.entry(installed), 201 if is_new else 200)


OPERATIONS = (
    Operation(
        name="listAgents",
        method="GET",
        path="/v1/agents",
        handler=list_agents,
        summary="List the installed agents",
        tag="agents",
        scope="manifest:read",
        answer=AgentInventoryResponse,
        errors=(401, 403),
    ),
    Operation(
        name="registerAgent",
        method="POST",
        path="/v1/agents",
        handler=register_agent,
        summary="Install an agent manifest or a new version",
        tag="agents",
        scope="agents:write",
        body=AgentManifest,
        success=201,
        answer=AgentInventoryEntry,
        other_answers=(200,),
        errors=(400, 401, 403, 409, 413, 415),
        is_extension=True,
    ),
    Operation(
        name="getAgent",
        method="GET",
        path="/v1/agents/{agent_id}",
        handler=get_agent,
        summary="Read an installed agent",
        tag="agents",
        scope="manifest:read",
        answer=AgentInventoryEntry,
        errors=(401, 403, 404),
        parameters=(
            Parameter(
                name="version", description="Default: the newest.", schema={"type": "string"}
            ),
        ),
    ),
)
