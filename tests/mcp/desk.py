"""A workflow with one agent that has tools of an MCP server."""

from __future__ import annotations

from collections.abc import Sequence

from wopr import Agent, Event, Workflow
from wopr.agents.mcp.servers import McpServer
from wopr.protocol.documents import JsonObject
from wopr.testing import memory_host
from wopr.testing.models import ScriptedModels

Desk = Workflow[JsonObject, JsonObject]


def desk(tools: McpServer | Agent, config: JsonObject | None = None) -> Desk:
    """Return a workflow whose agent may call the named tools of a server."""
    agent = tools
    if isinstance(agent, McpServer):
        agent = Agent("acme.clerk", model="openai:gpt", tools=[agent])
    flow: Desk = Workflow("desk", inputs=dict)
    flow.agent("answer", agent, prompt="Look it up.", config=config)
    return flow


async def ran(flow: Desk, models: ScriptedModels) -> list[Event]:
    """Run the workflow to its end on a host in memory, and return its log."""
    async with memory_host(flow, models=models) as host:
        run = await host.start(flow)
        snapshot = await run.settled()
        assert snapshot.status == "completed", snapshot.error
        return await run.log()


def payloads(log: Sequence[Event], event_type: str) -> list[JsonObject]:
    return [event.payload for event in log if event.type == event_type]
