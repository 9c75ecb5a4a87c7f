"""Payloads of events that this host reads but never emits, such as evals and deployments."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Millis, NonEmpty, Unset
from wopr.protocol.events.values import (
    Amount,
    Count,
    Ordinal,
    Percent,
    Ratio,
    Timestamp,
    require_distinct,
)

EvalMode: TypeAlias = Literal["golden", "rubric", "adversarial", "regression", "live-shadow"]
DeploymentState: TypeAlias = Literal[
    "draft", "test", "staged", "active", "paused", "deprecated", "rolled-back"
]
LeaseHost: TypeAlias = Literal["browser", "cloud"]
SubscriptionState: TypeAlias = Literal["active", "paused", "failed", "dead-lettered"]
ProposalKind: TypeAlias = Literal[
    "agent-pack", "workflow-chain-pack", "prompt-template", "automation"
]


class EvalStarted(Document, frozen=True, kw_only=True):
    """An evaluation suite began."""

    suite_id: NonEmpty
    suite_version: NonEmpty
    task_count: Count
    modes: Annotated[list[EvalMode], msgspec.Meta(extra_json_schema={"uniqueItems": True})]
    baseline_run_id: NonEmpty | Unset = UNSET

    def __post_init__(self) -> None:
        require_distinct("modes", self.modes)


class EvalScored(Document, frozen=True, kw_only=True):
    """One task of a suite was scored."""

    task_id: NonEmpty
    score: Ratio
    passed: bool
    cost_usd: Amount | Unset = UNSET
    latency_ms: Millis | Unset = UNSET
    schema_valid: bool | Unset = UNSET
    safety_finding_count: Count | Unset = UNSET


class EvalCompleted(Document, frozen=True, kw_only=True):
    """An evaluation suite ended."""

    aggregate_score: Ratio
    passed: bool
    task_count: Count
    passed_count: Count
    regression_vs_baseline: Annotated[float, msgspec.Meta(ge=-1, le=1)] | Unset = UNSET


class DeploymentPromoted(Closed, frozen=True, kw_only=True):
    """A version of an agent was promoted."""

    agent_id: NonEmpty
    to_version: NonEmpty
    to_state: DeploymentState
    from_version: NonEmpty | Unset = UNSET
    channel: NonEmpty | Unset = UNSET
    canary_percent: Percent | Unset = UNSET
    eval_run_id: NonEmpty | Unset = UNSET
    approval_gate_id: NonEmpty | Unset = UNSET


class DeploymentRolledBack(Closed, frozen=True, kw_only=True):
    """An agent was rolled back to an earlier version."""

    agent_id: NonEmpty
    from_version: NonEmpty
    to_version: NonEmpty
    rollback_pointer: NonEmpty
    reason: NonEmpty | Unset = UNSET


class DeploymentCanaryAdjusted(Closed, frozen=True, kw_only=True):
    """The canary percentage of a version changed."""

    agent_id: NonEmpty
    version: NonEmpty
    from_percent: Percent
    to_percent: Percent


class DeploymentStateChanged(Closed, frozen=True, kw_only=True):
    """The state of a version changed."""

    agent_id: NonEmpty
    version: NonEmpty
    from_state: DeploymentState
    to_state: DeploymentState


class RosterRunInitiated(Closed, frozen=True, kw_only=True):
    """A member of a roster started a run."""

    roster_id: NonEmpty
    persona: NonEmpty
    agent_id: NonEmpty
    workflow_id: NonEmpty
    trigger_source: NonEmpty
    trigger_subscription_id: NonEmpty | Unset = UNSET


class TriggerSubscriptionStateChanged(Document, frozen=True, kw_only=True):
    """The state of a trigger subscription changed."""

    subscription_id: NonEmpty
    source: Literal["webhook", "schedule", "queue", "email", "form"]
    from_state: SubscriptionState
    to_state: SubscriptionState
    reason: (
        Literal[
            "retry-exhausted",
            "operator-paused",
            "signature-invalid",
            "backpressure",
            "source-removed",
            "provenance-unevaluable",
        ]
        | Unset
    ) = UNSET


class TriggerDeliveryAttempted(Document, frozen=True, kw_only=True):
    """A trigger attempted a delivery."""

    subscription_id: NonEmpty
    dedup_key: NonEmpty
    attempt: Ordinal
    outcome: Literal["delivered", "retrying", "dead-lettered"]
    run_id: NonEmpty | Unset = UNSET


class LeaseLifecycle(Document, frozen=True, kw_only=True):
    """A lease of a run was acquired, renewed or lost."""

    lease_id: NonEmpty
    host: LeaseHost
    instance_id: str | Unset = UNSET
    expires_at: Timestamp | Unset = UNSET
    previous_host: LeaseHost | Unset = UNSET


class LeaseHandedOff(Document, frozen=True, kw_only=True):
    """A lease was handed off to another kind of host."""

    lease_id: NonEmpty
    from_host: LeaseHost
    to_host: LeaseHost
    reason: str | Unset = UNSET


class ProposalCreated(Closed, frozen=True, kw_only=True):
    """A person or an agent proposed an artifact."""

    proposal_id: NonEmpty
    kind: ProposalKind
    source_run_ids: list[str] | Unset = UNSET
    duplicate_of: str | Unset | None = UNSET


class ProposalActivated(Closed, frozen=True, kw_only=True):
    """A proposed artifact was activated."""

    proposal_id: NonEmpty
    kind: ProposalKind
    installed_artifact_ref: NonEmpty
    approval_id: str | Unset | None = UNSET


class GoalEvaluated(Closed, frozen=True, kw_only=True):
    """A goal was evaluated."""

    goal_id: NonEmpty
    satisfied: bool
    run_id: NonEmpty
    iterations: Count
    confidence: Ratio | Unset = UNSET


class GoalClosed(Closed, frozen=True, kw_only=True):
    """A goal was closed."""

    goal_id: NonEmpty
    final_state: Literal["satisfied", "escalated", "abandoned", "bound-exceeded"]


class ImportCounts(Closed, frozen=True, kw_only=True):
    """Counts of an import."""

    created: Count | Unset = UNSET
    updated: Count | Unset = UNSET
    skipped: Count | Unset = UNSET
    failed: Count | Unset = UNSET


class ImportApplied(Closed, frozen=True, kw_only=True):
    """A bundle was imported. Its secrets must be bound again by name."""

    bundle_origin: NonEmpty
    counts: ImportCounts
    secrets_to_rebind: list[str] | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "eval.started": EvalStarted,
    "eval.scored": EvalScored,
    "eval.completed": EvalCompleted,
    "deployment.promoted": DeploymentPromoted,
    "deployment.rolled-back": DeploymentRolledBack,
    "deployment.canary.adjusted": DeploymentCanaryAdjusted,
    "deployment.state.changed": DeploymentStateChanged,
    "roster.run.initiated": RosterRunInitiated,
    "trigger.subscription.state.changed": TriggerSubscriptionStateChanged,
    "trigger.delivery.attempted": TriggerDeliveryAttempted,
    "lease.acquired": LeaseLifecycle,
    "lease.renewed": LeaseLifecycle,
    "lease.lost": LeaseLifecycle,
    "lease.handed-off": LeaseHandedOff,
    "proposal.created": ProposalCreated,
    "proposal.activated": ProposalActivated,
    "goal.evaluated": GoalEvaluated,
    "goal.closed": GoalClosed,
    "import.applied": ImportApplied,
}
