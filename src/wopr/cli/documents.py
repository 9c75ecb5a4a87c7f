"""What only a client decodes: answers of the host's own endpoints, and JSON of any shape."""

from __future__ import annotations

from typing import cast

from wopr.api.documents import InboxItem, Listing
from wopr.protocol.documents import UNSET, Document, Json, JsonObject, Unset

__all__ = [
    "AgentInventory",
    "AgentItem",
    "Fault",
    "InboxItem",
    "Listing",
    "Verdict",
    "WorkflowListItem",
    "list_of",
    "object_of",
]


class WorkflowListItem(Document, frozen=True, kw_only=True):
    """One line of the workflow list."""

    id: str
    version: str
    name: str | Unset = UNSET
    registered_at: str | Unset = UNSET


class AgentItem(Document, frozen=True, kw_only=True):
    """One agent of the inventory."""

    agent_id: str
    pack_version: str
    label: str
    model_class: str
    tool_allowlist: list[str]
    confidence_threshold: float | Unset = UNSET
    degraded: list[str] = []


class AgentInventory(Document, frozen=True, kw_only=True):
    """All agents that the key can use."""

    agents: list[AgentItem]


class Fault(Document, frozen=True, kw_only=True):
    """One thing that is wrong with a definition, and where."""

    message: str
    path: str = ""


class Verdict(Document, frozen=True, kw_only=True):
    """What the host says of a definition that was only checked."""

    valid: bool
    errors: list[Fault] = []
    warnings: list[Fault] = []


def object_of(value: Json) -> JsonObject:
    """The value when it is a JSON object, else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_of(value: Json) -> list[object]:
    """The value when it is a JSON array, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []
