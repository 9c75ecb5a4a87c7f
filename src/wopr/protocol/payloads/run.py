"""What happens to a run as a whole, to its workflow and to its limits."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, JsonObject, Millis, NonEmpty, Unset
from wopr.protocol.payloads.values import Amount, Count, EventError, Ordinal
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
    # Outside the published enum on purpose: an operator who switches escalation off gets this
    # record of each escalation that did not happen, and discovery says that the switch is set.
    "confidence-escalation-suppressed",
]


class RunStarted(Document, frozen=True, kw_only=True):
    """The first event; with the workflow it holds all that a replay needs.

    `configurable` and `workflowVersion` are this host's own.
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
    """The run reached its end."""

    outputs: JsonObject | Unset = UNSET
    duration_ms: Millis | Unset = UNSET


class RunFailed(Document, frozen=True, kw_only=True):
    """The run ended on an error."""

    error: EventError
    failed_node_id: str | Unset = UNSET
    duration_ms: Millis | Unset = UNSET


class RunCancelled(Document, frozen=True, kw_only=True):
    """The run was called off; `parentRunId` only when its parent was."""

    reason: str | Unset = UNSET
    cancelled_by: str | Unset = UNSET
    duration_ms: Millis | Unset = UNSET
    parent_run_id: NonEmpty | Unset = UNSET


class RunResuming(Document, frozen=True, kw_only=True):
    """The run is about to go on."""

    from_status: str | Unset = UNSET


class RunPaused(Document, frozen=True, kw_only=True):
    """An operator stopped the run; the policy says what became of the node in flight."""

    reason: str | Unset = UNSET
    drain_policy: DrainPolicy | Unset = UNSET


class RunResumed(Document, frozen=True, kw_only=True):
    """An operator let the run go on."""

    reason: str | Unset = UNSET


class RunRestoredFromSnapshot(Document, frozen=True, kw_only=True):
    """The run was rebuilt from a stored fold."""

    snapshot_seq: Count | Unset = UNSET
    engine_version: str | Unset = UNSET


class RunDeadLettered(Closed, frozen=True, kw_only=True):
    """The run was set aside after too many attempts."""

    run_id: NonEmpty
    reason: NonEmpty
    attempts: Ordinal
    node_id: str | Unset = UNSET


class WorkflowRestored(Document, frozen=True, kw_only=True):
    """A workflow's state came back from a snapshot."""

    from_snapshot_seq: Count | Unset = UNSET
    engine_version: str | Unset = UNSET


class WorkflowLoopbackLimit(Document, frozen=True, kw_only=True):
    """A node was entered again too often."""

    node_id: str
    iterations: Ordinal
    limit: Ordinal | Unset = UNSET


class WorkflowStalled(Document, frozen=True, kw_only=True):
    """Nothing can run and nothing is waited for."""

    stalled_for_ms: Millis | Unset = UNSET
    last_node_id: str | Unset = UNSET


class CapBreached(Document, frozen=True, kw_only=True):
    """A limit was passed; `observed` is recorded and never measured again."""

    kind: CapKind
    limit: Amount
    observed: Amount
    node_id: str | Unset = UNSET


class VersionPinned(Document, frozen=True, kw_only=True):
    """A change of code was pinned to one version for the rest of the run."""

    change_id: NonEmpty
    version: Annotated[int, msgspec.Meta(ge=0)]
    node_id: str | Unset = UNSET


class LogAppended(Document, frozen=True, kw_only=True):
    """A line that a node wrote for its operator."""

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
