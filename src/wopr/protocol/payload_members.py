"""Readers of members of event payloads.

Events have two dialects: the member names of the JSON Schemas, and those of the text of the RFC. A
member that does not have the expected type counts as absent.
"""

from __future__ import annotations

from typing import Final

from wopr.protocol.agents import agent_of_payload
from wopr.protocol.documents import Json, JsonObject, object_of
from wopr.protocol.events import RunEvent

# The agent id of the host itself.
SYSTEM: Final = "core.system"
# Larger numbers count as absent: they are infinite, or integers that a float cannot represent.
_LARGEST: Final = 1e18


def text_member(payload: JsonObject, *names: str) -> str | None:
    """Return the first of these members that is a string and not empty."""
    found = (payload.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value), None)


def number_member(payload: JsonObject, name: str) -> float | None:
    """Return a member that is a finite number. A boolean is not a number."""
    value: Json = payload.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_LARGEST <= value <= _LARGEST else None


def ratio_member(payload: JsonObject, name: str) -> float | None:
    """Return a member that is a number from 0 to 1."""
    value = number_member(payload, name)
    return value if value is not None and 0 <= value <= 1 else None


def present_members(payload: JsonObject, *names: str) -> JsonObject:
    """Return the named members that are present and not null."""
    return {name: payload[name] for name in names if payload.get(name) is not None}


def node_id_of(event: RunEvent) -> str | None:
    """Return the id of the node that an event is about."""
    if isinstance(event.node_id, str):
        return event.node_id
    return text_member(object_of(event.payload), "nodeId")


def acting_agent_id(payload: JsonObject) -> str | None:
    """Return the id of the acting agent, from any member that can contain it."""
    return agent_of_payload(payload) or text_member(object_of(payload.get("data")), "agentId")


def from_agent(payload: JsonObject) -> str | None:
    """Return the agent of a handoff that control moves from."""
    return text_member(payload, "fromAgentId", "from") or text_member(
        object_of(payload.get("from")), "agentId"
    )


def to_agent(payload: JsonObject) -> str | None:
    """Return the agent of a handoff that control moves to."""
    return text_member(payload, "toAgentId", "to") or text_member(
        object_of(payload.get("to")), "agentId"
    )


def tool_name_of(payload: JsonObject) -> str | None:
    """Return the name of the tool of a call or a result."""
    return text_member(payload, "toolName", "toolId")
