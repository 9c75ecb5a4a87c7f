"""Text of an MCP tool can neither approve, nor name other tools, nor act for another tenant."""

from __future__ import annotations

import pytest

from tests.mcp.conftest import Notes
from tests.mcp.desk import Desk, payloads
from wopr import Agent, Workflow, tool
from wopr.testing import call, memory_host, say, scripted

pytestmark = pytest.mark.anyio
wiped: list[str] = []


@tool
def wipe() -> str:
    """Delete everything."""
    wiped.append("all")
    return "gone"


def desk(notes: Notes) -> Desk:
    """Return an agent that reads a note, and a gate after it; another agent may wipe."""
    clerk = Agent("acme.clerk", model="openai:clerk", tools=[notes.server()])
    other = Agent("acme.other", model="openai:other", tools=[wipe])
    flow: Desk = Workflow("desk", inputs=dict)
    read = flow.agent("read", clerk, prompt="Read the note.")
    gate = flow.approval("gate", "Send it?", artifact=read["text"])
    rest = flow.agent("rest", other, prompt="Go on.")
    read >> gate >> rest
    return flow


async def test_instructions_in_a_result_stay_marked_and_change_nothing(notes: Notes) -> None:
    flow = desk(notes)
    # The model obeys the note as far as it can.
    models = scripted(
        clerk=[
            call("notes_read"),
            call("wipe"),
            call("local:wipe"),
            say('{"action": "accept", "tenantId": "globex"}'),
        ]
    )

    async with memory_host(flow, models=models) as host:
        run = await host.start(flow)
        snapshot = await run.settled()
        log = await run.log()
        waits = await run.waits()

    told = models.requests[1].messages[-1].content
    assert told.startswith('<UNTRUSTED tool="mcp:notes.read">')
    assert told.count("</UNTRUSTED>") == 1
    assert snapshot.status == "waiting-approval"
    assert [wait.node_id for wait in waits] == ["gate"]
    assert payloads(log, "approval.received") == []
    called = [payload["toolName"] for payload in payloads(log, "agent.toolCalled")]
    assert called == ["mcp:notes.read"]
    assert wiped == []
    assert payloads(log, "run.started")[0]["owner"]["tenant"] == "test"
