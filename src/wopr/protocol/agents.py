"""AgentRef: the agent that acts, pinned to a version or to a channel."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Json, Unset, object_of

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
    """The identity of the agent that a node or a run acts for."""

    agent_id: AgentId
    name: Label | Unset = UNSET
    model_class: ModelClass | Unset = UNSET
    memory_ref: MemoryRef | Unset = UNSET
    version: Pin | Unset = UNSET
    channel: Channel | Unset = UNSET
    source_manifest_id: Label | Unset = UNSET

    def __post_init__(self) -> None:
        if self.version is not UNSET and self.channel is not UNSET:
            raise ValueError("an agent has version or channel, not both")


def agent_of_payload(payload: Json) -> str:
    """Return the id of the agent that the payload of an event names; empty if it names none."""
    members = object_of(payload)
    named = members.get("agentId") or object_of(members.get("agent")).get("agentId")
    return named if isinstance(named, str) else ""
