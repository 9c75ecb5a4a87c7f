"""Routes of agents: list, read and install manifests."""

from __future__ import annotations

from wopr.http.operation import Operation, Parameter
from wopr.http.request import Request, decode_any
from wopr.http.response import Response, ok
from wopr.protocol.manifests import AgentInventoryEntry, AgentInventoryResponse, AgentManifest


async def list_agents(request: Request) -> Response:
    """List every agent that the tenant can use, by id."""
    return ok(await request.host.agents.inventory(request.tenant))


async def get_agent(request: Request) -> Response:
    """Read one agent of the inventory."""
    agents = request.host.agents
    found = await agents.agent(
        request.tenant, request.path["agent_id"], request.query.get("version")
    )
    return ok(agents.entry(found))


async def register_agent(request: Request) -> Response:
    """Install a manifest, or a new version of one. The response is its inventory entry."""
    document = decode_any(await request.raw_document())
    agents = request.host.agents
    installed, is_new = await agents.register(request.tenant, document)
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
        response=AgentInventoryResponse,
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
        response=AgentInventoryEntry,
        other_statuses=(200,),
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
        response=AgentInventoryEntry,
        errors=(401, 403, 404),
        parameters=(
            Parameter(
                name="version",
                description="Version of the agent. Default: the newest.",
                schema={"type": "string"},
            ),
        ),
    ),
)
