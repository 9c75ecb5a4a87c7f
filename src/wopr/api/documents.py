"""Documents that only clients decode: pages of collections, and responses of extension routes."""

from __future__ import annotations

from typing import Generic, TypeVar

from wopr.protocol.documents import UNSET, Document, Unset

T = TypeVar("T")


class Listing(Document, Generic[T], frozen=True, kw_only=True):
    """A page of a collection. The last page has no `next_cursor`."""

    items: list[T]
    next_cursor: str | Unset | None = UNSET


class WorkflowListItem(Document, frozen=True, kw_only=True):
    """One item of the workflow list."""

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
    """The agents that the key can use."""

    agents: list[AgentItem]


class DefinitionFault(Document, frozen=True, kw_only=True):
    """One error in a definition, and its path."""

    message: str
    path: str = ""


class ValidationReport(Document, frozen=True, kw_only=True):
    """The result of `POST /v1/workflows:validate`."""

    valid: bool
    errors: list[DefinitionFault] = []
    warnings: list[DefinitionFault] = []
