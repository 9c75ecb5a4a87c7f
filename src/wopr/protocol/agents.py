"""AgentRef: who acts. Closed, and pinned either to a version or to a channel, never both."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec

from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, Unset

AgentId = Annotated[str, msgspec.Meta(min_length=3, max_length=256)]
Label = Annotated[str, msgspec.Meta(max_length=256)]
Pin = Annotated[str, msgspec.Meta(max_length=64)]
MemoryRef = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Channel = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
ModelClass = Literal[
    "reasoning",
    "tool-using",
    "chat",
    "code",
    "vision",
    "multimodal",
    "embedding",
    "classification",
    "retrieval",
]


class AgentRef(Closed, frozen=True, kw_only=True):
    """The identity of the agent that a node or a run speaks for."""

    agent_id: AgentId
    name: Label | Unset = UNSET
    model_class: ModelClass | Unset = UNSET
    memory_ref: MemoryRef | Unset = UNSET
    version: Pin | Unset = UNSET
    channel: Channel | Unset = UNSET
    source_manifest_id: Label | Unset = UNSET

    def __post_init__(self) -> None:
        if self.version is not UNSET and self.channel is not UNSET:
            raise ValueError("agent takes version or channel, not both")


def agent_of_payload(payload: Json) -> str:
    """The agent that an event's payload names, by its id or by its reference; empty if none."""
    members = _members(payload)
    named = members.get("agentId") or _members(members.get("agent")).get("agentId")
    return named if isinstance(named, str) else ""


def _members(value: Json) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}
