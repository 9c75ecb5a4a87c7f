"""What only a client decodes: pages of collections, and the lines of the inbox."""

from __future__ import annotations

from typing import Generic, TypeVar

from wopr.protocol.documents import UNSET, Document, JsonObject, Unset

T = TypeVar("T")


class Listing(Document, Generic[T], frozen=True, kw_only=True):
    """A page of a collection; no `nextCursor` means it is the last."""

    items: list[T]
    next_cursor: str | Unset | None = UNSET


class Asker(Document, frozen=True, kw_only=True):
    """Who waits for an answer."""

    node_name: str = ""
    agent_id: str = ""
    started_by: str = ""


class InboxVotes(Document, frozen=True, kw_only=True):
    """How far a gate that needs several approvals has come."""

    granted: int
    rejected: int
    required: int


class InboxItem(Document, frozen=True, kw_only=True):
    """One wait of the inbox."""

    interrupt_id: str
    run_id: str
    node_id: str
    workflow_id: str
    kind: str
    status: str
    requested_at: str
    question: str
    asked_by: Asker
    data: JsonObject
    answers: dict[str, str]
    age_ms: int = 0
    expires_at: str = ""
    reason: str = ""
    votes: InboxVotes | Unset = UNSET
