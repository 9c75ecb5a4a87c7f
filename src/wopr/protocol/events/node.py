"""Payloads of node events."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.protocol.agents import AgentId, AgentRef
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    Millis,
    NonEmpty,
    Unset,
)
from wopr.protocol.events.values import Count, EventError, Ordinal, Ratio
from wopr.protocol.interrupts import InterruptKind


class NodeStarted(Document, frozen=True, kw_only=True):
    """A node started an attempt. `agent` is present if the node is bound to an agent."""

    node_id: NonEmpty
    type_id: NonEmpty
    attempt: Count | Unset = UNSET
    agent: AgentRef | Unset = UNSET


class NodeCompleted(Document, frozen=True, kw_only=True):
    """A node completed. `agent` is the agent with which it started."""

    node_id: NonEmpty
    outputs: JsonObject | Unset = UNSET
    duration_ms: Millis | Unset = UNSET
    agent: AgentRef | Unset = UNSET


class NodeFailed(Document, frozen=True, kw_only=True):
    """A node failed and is not retried."""

    node_id: NonEmpty
    error: EventError
    attempts: Ordinal | Unset = UNSET


class NodeSuspended(Document, frozen=True, kw_only=True):
    """A node waits for an external answer.

    A low-confidence interrupt has the fields after `key`. A conversation has only `reason`.
    """

    node_id: NonEmpty
    interrupt_id: NonEmpty
    kind: InterruptKind | Unset = UNSET
    key: NonEmpty | Unset = UNSET
    reason: str | Unset = UNSET
    agent_id: AgentId | Unset = UNSET
    threshold: Ratio | Unset = UNSET
    observed: Ratio | Unset = UNSET
    decision: Json | Unset = UNSET


class NodeSuspendFailed(Document, frozen=True, kw_only=True):
    """The suspension of a node could not be stored."""

    node_id: NonEmpty
    error: EventError


class NodeResumed(Document, frozen=True, kw_only=True):
    """A suspended node resumed with an answer."""

    node_id: NonEmpty
    interrupt_id: str | Unset = UNSET
    resume_value: Json | Unset = UNSET


class NodeRetried(Document, frozen=True, kw_only=True):
    """A node will be attempted again."""

    node_id: NonEmpty
    attempt: Ordinal
    delay_ms: Millis | Unset = UNSET
    last_error: EventError | Unset = UNSET


class NodeSkipped(Document, frozen=True, kw_only=True):
    """A node was skipped, because no active edge led to it."""

    node_id: NonEmpty
    reason: str | Unset = UNSET


class NodeCancelled(Document, frozen=True, kw_only=True):
    """A node in flight was stopped."""

    node_id: NonEmpty
    reason: str | Unset = UNSET


class NodeDispatched(Closed, frozen=True, kw_only=True):
    """A node started a child run. The id of the node is in the event envelope only."""

    child_run_id: NonEmpty
    child_workflow_id: NonEmpty
    child_status: str | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "node.started": NodeStarted,
    "node.completed": NodeCompleted,
    "node.failed": NodeFailed,
    "node.suspended": NodeSuspended,
    "node.suspend-failed": NodeSuspendFailed,
    "node.resumed": NodeResumed,
    "node.retried": NodeRetried,
    "node.skipped": NodeSkipped,
    "node.cancelled": NodeCancelled,
    "node.dispatched": NodeDispatched,
}
