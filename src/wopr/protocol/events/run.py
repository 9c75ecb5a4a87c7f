"""Payloads of run events."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, JsonObject, Millis, NonEmpty, Unset
from wopr.protocol.events.values import Amount, Count, EventError, Ordinal
from wopr.protocol.runs import DrainPolicy, Owner

CapKind: TypeAlias = Literal[
    "clarification",
    "schema",
    "envelopes",
    "node-executions",
    "wasm-memory",
    "wasm-fuel",
    "wasm-execution-time",
    "run-duration",
    "loop-iterations",
    "budget-tokens",
    "budget-cost",
    "budget-tool-calls",
    "budget-retries",
    # Not in the published enum. It records each escalation that was suppressed because the operator
    # switched escalation off, which discovery shows.
    "confidence-escalation-suppressed",
]


class RunStarted(Document, frozen=True, kw_only=True):
    """The first event. With the workflow it has everything that a replay needs.

    `configurable` and `workflowVersion` are extensions of this host.
    """

    workflow_id: NonEmpty
    inputs: JsonObject | Unset = UNSET
    transport: Literal["rest", "mcp", "a2a", "ui"] | Unset = UNSET
    engine_version: str | Unset = UNSET
    owner: Owner | Unset = UNSET
    tags: list[str] | Unset = UNSET
    metadata: JsonObject | Unset = UNSET
    configurable: JsonObject | Unset = UNSET
    workflow_version: str | Unset = UNSET


class RunCompleted(Document, frozen=True, kw_only=True):
    """The run completed."""

    outputs: JsonObject | Unset = UNSET
    duration_ms: Millis | Unset = UNSET


class RunFailed(Document, frozen=True, kw_only=True):
    """The run failed."""

    error: EventError
    failed_node_id: str | Unset = UNSET
    duration_ms: Millis | Unset = UNSET


class RunCancelled(Document, frozen=True, kw_only=True):
    """The run was cancelled. `parentRunId` is present if its parent was cancelled."""

    reason: str | Unset = UNSET
    cancelled_by: str | Unset = UNSET
    duration_ms: Millis | Unset = UNSET
    parent_run_id: NonEmpty | Unset = UNSET


class RunResuming(Document, frozen=True, kw_only=True):
    """The run is about to continue."""

    from_status: str | Unset = UNSET


class RunPaused(Document, frozen=True, kw_only=True):
    """An operator paused the run. The policy says what happens to nodes in flight."""

    reason: str | Unset = UNSET
    drain_policy: DrainPolicy | Unset = UNSET


class RunResumed(Document, frozen=True, kw_only=True):
    """An operator resumed the run."""

    reason: str | Unset = UNSET


class RunRestoredFromSnapshot(Document, frozen=True, kw_only=True):
    """The run was restored from a stored snapshot."""

    snapshot_seq: Count | Unset = UNSET
    engine_version: str | Unset = UNSET


class RunDeadLettered(Closed, frozen=True, kw_only=True):
    """The run was dead-lettered after too many attempts."""

    run_id: NonEmpty
    reason: NonEmpty
    attempts: Ordinal
    node_id: str | Unset = UNSET


class WorkflowRestored(Document, frozen=True, kw_only=True):
    """The state of a workflow was restored from a snapshot."""

    from_snapshot_seq: Count | Unset = UNSET
    engine_version: str | Unset = UNSET


class WorkflowLoopbackLimit(Document, frozen=True, kw_only=True):
    """A loop exceeded its iteration limit."""

    node_id: str
    iterations: Ordinal
    limit: Ordinal | Unset = UNSET


class WorkflowStalled(Document, frozen=True, kw_only=True):
    """No node can run, and the run waits for nothing."""

    stalled_for_ms: Millis | Unset = UNSET
    last_node_id: str | Unset = UNSET


class CapBreached(Document, frozen=True, kw_only=True):
    """A limit was exceeded. A replay uses the recorded `observed` value."""

    kind: CapKind
    limit: Amount
    observed: Amount
    node_id: str | Unset = UNSET


class VersionPinned(Document, frozen=True, kw_only=True):
    """A code change was pinned to one version for the rest of the run."""

    change_id: NonEmpty
    version: Annotated[int, msgspec.Meta(ge=0)]
    node_id: str | Unset = UNSET


class LogAppended(Document, frozen=True, kw_only=True):
    """A log line of a node."""

    level: Literal["debug", "info", "warn", "error"]
    message: str
    node_id: str | Unset = UNSET
    fields: JsonObject | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "run.started": RunStarted,
    "run.completed": RunCompleted,
    "run.failed": RunFailed,
    "run.cancelled": RunCancelled,
    "run.resuming": RunResuming,
    "run.paused": RunPaused,
    "run.resumed": RunResumed,
    "run.restored-from-snapshot": RunRestoredFromSnapshot,
    "run.dead_lettered": RunDeadLettered,
    "workflow.restored": WorkflowRestored,
    "workflow.loopback-limit": WorkflowLoopbackLimit,
    "workflow.stalled": WorkflowStalled,
    "cap.breached": CapBreached,
    "version.pinned": VersionPinned,
    "log.appended": LogAppended,
}
