"""Payloads of orchestrator decisions, and of the events of dispatched child runs."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, NonEmpty, Unset
from wopr.protocol.events.values import EventError, Ordinal, Ratio

WorkerId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
ChainPhase: TypeAlias = Literal[
    "dispatch.began",
    "dispatch.succeeded",
    "dispatch.failed",
    "child.completed",
    "child.failed",
    "child.cancelled",
    "output.harvested",
]
# Phases in which there is no child run.
_CHILDLESS: Final = ("dispatch.began", "dispatch.failed")


class NextWorker(Closed, frozen=True, kw_only=True, tag_field="kind", tag="next-worker"):
    """Start these workflows in sequence."""

    next_worker_ids: Annotated[list[WorkerId], msgspec.Meta(min_length=1)]
    confidence: Ratio | Unset = UNSET


class AskUser(Closed, frozen=True, kw_only=True, tag_field="kind", tag="ask-user"):
    """Ask a person."""

    prompt: NonEmpty


class SuccessCriterion(Closed, frozen=True, kw_only=True):
    """A success criterion, and whether it was met."""

    key: NonEmpty
    met: bool


class Terminate(Closed, frozen=True, kw_only=True, tag_field="kind", tag="terminate"):
    """End the loop. If a criterion is not met, the orchestrator has given up."""

    reason: NonEmpty | Unset = UNSET
    confidence: Ratio | Unset = UNSET
    success_criteria: list[SuccessCriterion] | Unset = UNSET


OrchestratorDecision: TypeAlias = NextWorker | AskUser | Terminate


class RunOrchestratorDecided(Closed, frozen=True, kw_only=True):
    """The supervisor's decision for one turn, written before it is executed."""

    agent_id: AgentId
    decision: OrchestratorDecision
    iteration: Ordinal | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class Attestation(Closed, frozen=True, kw_only=True):
    """A checksum of the outputs of a child."""

    checksum: NonEmpty
    algorithm: Literal["sha256"]


class CoreWorkflowChainEvent(Closed, frozen=True, kw_only=True):
    """One phase of a dispatched child run. `childRunId` is present once the child exists."""

    phase: ChainPhase
    worker_id: NonEmpty
    parent_run_id: NonEmpty
    child_run_id: NonEmpty | Unset = UNSET
    harvested_keys: list[str] | Unset = UNSET
    attestation: Attestation | Unset = UNSET
    error: EventError | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET

    def __post_init__(self) -> None:
        if self.phase in _CHILDLESS and self.child_run_id is not UNSET:
            raise ValueError(f"phase {self.phase} has no childRunId")
        if self.phase not in _CHILDLESS and self.child_run_id is UNSET:
            raise ValueError(f"phase {self.phase} needs childRunId")


class CoreWorkflowChainConfidenceEscalated(Closed, frozen=True, kw_only=True):
    """A decision with a confidence below the floor was escalated to a person."""

    confidence: Ratio
    floor: Annotated[float, msgspec.Meta(ge=0.5, le=1)]
    escalation_kind: Literal["clarify", "escalate"]
    parent_run_id: NonEmpty
    worker_id: NonEmpty | Unset = UNSET
    original_decision: OrchestratorDecision | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "runOrchestrator.decided": RunOrchestratorDecided,
    "core.workflowChain.event": CoreWorkflowChainEvent,
    "core.workflowChain.confidence-escalated": CoreWorkflowChainConfidenceEscalated,
}
