"""Agents with unsure decisions."""

from __future__ import annotations

from tests.support.agent_definitions import mock, scripted, waiting_run
from tests.support.client import Wire
from wopr.protocol.documents import Json, JsonObject

UNSURE: JsonObject = {"decision": {"kind": "stub"}, "confidence": 0.5}


def deciding(decision: JsonObject, agent_id: str | None = None, **fields: Json) -> JsonObject:
    """Return a workflow whose only node decides."""
    agent = None if agent_id is None else {"agentId": agent_id}
    return scripted([mock("decider", agent, mockDecision=decision)], **fields)


def held(wire: Wire, definition: JsonObject, **body: Json) -> str:
    """Start a run with a decision that waits for a person."""
    return waiting_run(wire, wire.register(definition), **body)
