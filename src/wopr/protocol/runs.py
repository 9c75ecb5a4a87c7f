"""Runs on the wire: requests and responses, options, and the snapshot."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Id,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
)

RunStatus: TypeAlias = Literal[
    "pending",
    "running",
    "paused",
    "waiting-approval",
    "waiting-input",
    "waiting-external",
    "completed",
    "failed",
    "cancelling",
    "cancelled",
]
RUN_STATUSES: tuple[str, ...] = get_args(RunStatus)
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})
DrainPolicy: TypeAlias = Literal["immediate", "drain-current-node"]
DRAIN_POLICIES: tuple[str, ...] = get_args(DrainPolicy)

Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class MockProvider(Closed, frozen=True, kw_only=True):
    """The deterministic mock provider for a run's model calls."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    config: JsonObject = {}


class RunBudget(Document, frozen=True, kw_only=True):
    """The budget of a run for models and tools. The host's limits also apply."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    max_cost_usd: Annotated[float, msgspec.Meta(ge=0)] | Unset = UNSET
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET


class Configurable(Document, frozen=True, kw_only=True):
    """The reserved keys of `configurable`. Other keys are passed through unchanged."""

    recursion_limit: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    run_timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    max_loop_iterations: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    model: NonEmpty | Unset = UNSET
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | Unset = UNSET
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | Unset = UNSET
    prompt_overrides: dict[str, str] | Unset = UNSET
    escalation_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | Unset = UNSET
    # One of summary, full and off. The host's default applies to any other value.
    reasoning_verbosity: Json | Unset = UNSET
    mock_provider: MockProvider | Unset = UNSET
    budget: RunBudget | Unset = UNSET


class CreateRun(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/runs`."""

    workflow_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    inputs: JsonObject = {}
    tenant_id: Id | Unset = UNSET
    scope_id: Id | Unset = UNSET
    callback_url: NonEmpty | Unset = UNSET
    residency: Json | Unset = UNSET
    configurable: JsonObject = {}
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []
    metadata: JsonObject = {}


class RunAccepted(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The 201 response of a create, with the URLs of the run."""

    run_id: Id
    workflow_id: str
    status: RunStatus
    events_url: str
    status_url: str
    started_at: str


class RunError(Closed, frozen=True, kw_only=True):
    """Why a node or a run failed."""

    code: NonEmpty
    message: NonEmpty
    details: JsonObject | Unset = UNSET
    retryable: bool | Unset = UNSET


class Owner(Closed, frozen=True, kw_only=True):
    """The owner of a run, as opaque ids without personal data."""

    tenant: NonEmpty
    workspace: NonEmpty | Unset = UNSET
    principal: NonEmpty | Unset = UNSET


class NodeView(Document, frozen=True, kw_only=True):
    """One node as the snapshot shows it."""

    status: str
    attempts: int = 0
    started_at: str | Unset = UNSET
    completed_at: str | Unset = UNSET
    outputs: JsonObject | Unset = UNSET
    error: RunError | Unset = UNSET
    reason: str | Unset = UNSET
    # The version of the code that last executed the node.
    code_version: str | Unset = UNSET


class ChildRun(Document, frozen=True, kw_only=True):
    """A run that this run started."""

    run_id: Id
    status: RunStatus
    node_id: str | Unset = UNSET
    workflow_id: str | Unset = UNSET


class MissingCode(Document, frozen=True, kw_only=True):
    """A node that is due while the run waits for a process with its code.

    The code is that of the node's type, and of the tools of an app that its agent needs.
    """

    node_id: str
    type_id: str
    tools: list[str] | Unset = UNSET

    def __str__(self) -> str:
        """Return the node and the code that it needs as text."""
        tools = [f"tool {name}" for name in self.tools or ()]
        return f"{self.node_id} ({', '.join([self.type_id, *tools])})"


class Quarantine(Document, frozen=True, kw_only=True):
    """The quarantine of a run whose execution crashed processes. A resume ends it."""

    since: str
    crashes: int


class RunSnapshot(Document, frozen=True, kw_only=True):
    """The current state of a run."""

    run_id: Id
    workflow_id: str
    status: RunStatus
    workflow_version: str | Unset = UNSET
    owner: Owner | Unset = UNSET
    current_node_id: str | Unset = UNSET
    started_at: str | Unset = UNSET
    completed_at: str | Unset = UNSET
    ended_at: str | Unset = UNSET
    inputs: JsonObject | Unset = UNSET
    outputs: JsonObject | Unset = UNSET
    variables: JsonObject | Unset = UNSET
    channels: JsonObject | Unset = UNSET
    node_states: dict[str, NodeView] | Unset = UNSET
    agent: AgentRef | Unset = UNSET
    run_orchestrator: AgentRef | Unset = UNSET
    error: RunError | Unset = UNSET
    engine_version: str | Unset = UNSET
    event_log_schema_version: int | Unset = UNSET
    tags: list[str] | Unset = UNSET
    metadata: JsonObject | Unset = UNSET
    configurable: JsonObject | Unset = UNSET
    metrics: JsonObject | Unset = UNSET
    interrupt: JsonObject | Unset = UNSET
    child_runs: list[ChildRun] | Unset = UNSET
    parent_run_id: str | Unset = UNSET
    parent_node_id: str | Unset = UNSET
    paused_at: str | Unset = UNSET
    source_run_id: str | Unset = UNSET
    fork: JsonObject | Unset = UNSET
    last_sequence: int | Unset = UNSET
    waiting_for_code: list[MissingCode] | Unset = UNSET
    quarantine: Quarantine | Unset = UNSET


class CancelRun(Closed, frozen=True, kw_only=True):
    """The optional body of a cancel."""

    reason: Annotated[str, msgspec.Meta(max_length=512)] | Unset = UNSET


class CancelAnswer(Document, frozen=True, kw_only=True):
    """The response of a cancel; for an ended run, its status."""

    run_id: Id
    status: RunStatus
    already_terminal: bool = False


class BulkCancel(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/runs:bulk-cancel`."""

    run_ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=100)]
    reason: Annotated[str, msgspec.Meta(max_length=512)] | Unset = UNSET


class ItemError(Closed, frozen=True, kw_only=True):
    """The error of one item of a bulk request. It is not the error envelope."""

    code: NonEmpty
    message: NonEmpty


class BulkCancelItem(Document, frozen=True, kw_only=True):
    """The result for one run of a bulk cancel."""

    run_id: str
    ok: bool
    status: RunStatus | Unset = UNSET
    error: ItemError | Unset = UNSET


class BulkCancelAnswer(Document, frozen=True, kw_only=True):
    """The results of a bulk cancel, in request order."""

    results: list[BulkCancelItem]


class PauseRun(Closed, frozen=True, kw_only=True):
    """The optional body of a pause."""

    reason: Annotated[str, msgspec.Meta(max_length=512)] | Unset = UNSET
    drain_policy: str = "drain-current-node"


class PauseAnswer(Document, frozen=True, kw_only=True):
    """The 202 response of a pause."""

    run_id: Id
    status: RunStatus
    paused_at: str


class ResumeRun(Closed, frozen=True, kw_only=True):
    """The optional body of a resume. The reason is in the event `run.resumed`."""

    reason: Annotated[str, msgspec.Meta(max_length=512)] | Unset = UNSET


class ResumeAnswer(Document, frozen=True, kw_only=True):
    """The 202 response of a resume."""

    run_id: Id
    status: RunStatus
    resumed_at: str


class EventPage(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The response of a poll. It has the members of both forms that clients know."""

    run_id: Id
    events: list[msgspec.Raw]
    last_event_seq: int
    run_status: RunStatus
    is_terminal: bool
    is_complete: bool


class RunFeedback(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Counts of a run's annotations. `mean_rating` is absent without a rating."""

    annotations: int
    ratings: int
    corrections: int
    labels: int
    flags: int
    mean_rating: float | Unset = UNSET


class RunListItem(Document, frozen=True, kw_only=True):
    """One line of the run list."""

    run_id: Id
    workflow_id: str
    workflow_version: str
    status: RunStatus
    created_at: str
    updated_at: str
    ended_at: str | Unset = UNSET
    tags: list[str] = []
    parent_run_id: str | Unset = UNSET
    # The origin of an observed run.
    metadata: JsonObject | Unset = UNSET
    # Absent while the run has no annotation.
    feedback: RunFeedback | Unset = UNSET
    waiting_for_code: list[MissingCode] | Unset = UNSET
    quarantine: Quarantine | Unset = UNSET


class Page(Document, frozen=True, kw_only=True):
    """A page of a collection of this host."""

    items: list[Any]
    next_cursor: str | Unset = UNSET
