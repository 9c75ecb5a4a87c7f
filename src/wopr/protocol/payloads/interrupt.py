"""Waits for people and for the outside: asked, decided, resolved."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.interrupts import InterruptKind, InterruptPayload, RefineFeedback
from wopr.protocol.payloads.values import Count, Ordinal

# This older event says `edit` where the interrupt itself says `edit-accept`.
LegacyAction: TypeAlias = Literal["accept", "reject", "refine", "edit", "ask"]
ReceivedAction: TypeAlias = Literal["accept", "reject", "refine", "edit-accept", "timeout"]


class ApprovalRequested(Document, frozen=True, kw_only=True):
    """An approval was asked for, in the form that older clients read."""

    node_id: str
    artifact_id: str
    artifact_type: str
    actions: Annotated[list[LegacyAction], msgspec.Meta(min_length=1)]
    interrupt_id: str | Unset = UNSET
    title: str | Unset = UNSET
    approvers_list: list[str] | Unset = UNSET
    required_approvals: Ordinal | Unset = UNSET


class ApprovalReceived(Document, frozen=True, kw_only=True):
    """An approval was decided; the host names the decider, except when time ran out."""

    node_id: str
    action: ReceivedAction
    decided_by: str | Unset = UNSET
    decided_at: str | Unset = UNSET
    comment: str | Unset = UNSET
    feedback: str | Unset = UNSET
    refine_feedback: RefineFeedback | Unset = UNSET
    edited_artifact_data: Json | Unset = UNSET

    def __post_init__(self) -> None:
        if self.action == "refine" and self.refine_feedback is UNSET:
            raise ValueError("action refine needs refineFeedback")
        if self.action == "edit-accept" and self.edited_artifact_data is UNSET:
            raise ValueError("action edit-accept needs editedArtifactData")


class QuorumProgress(Closed, frozen=True, kw_only=True):
    """How many votes a gate has and needs."""

    granted: Count | Unset = UNSET
    required: Ordinal | Unset = UNSET


class ApprovalGranted(Closed, frozen=True, kw_only=True):
    """A vote for, at a governance gate."""

    gate_id: NonEmpty
    principal: NonEmpty
    quorum_progress: QuorumProgress | Unset = UNSET


class ApprovalRejected(Closed, frozen=True, kw_only=True):
    """A vote against, at a governance gate."""

    gate_id: NonEmpty
    principal: NonEmpty
    reason: str | Unset = UNSET


class ApprovalOverridden(Closed, frozen=True, kw_only=True):
    """A governance gate was opened by someone entitled to."""

    gate_id: NonEmpty
    principal: NonEmpty
    reason: NonEmpty


class AskedQuestion(Document, frozen=True, kw_only=True):
    """A question in the form that older clients read."""

    id: str
    question: str
    schema: JsonObject | Unset = UNSET


class ClarificationRequested(Document, frozen=True, kw_only=True):
    """Questions were asked, in the form that older clients read."""

    node_id: str
    questions: list[AskedQuestion]
    interrupt_id: str | Unset = UNSET


class ClarificationResolved(Document, frozen=True, kw_only=True):
    """Questions were answered, by question id."""

    node_id: str
    answers: JsonObject
    answered_by: str | Unset = UNSET


class InterruptResolved(Document, frozen=True, kw_only=True):
    """A wait is over; a gate that ran out of time adds its outcome and the reason.

    The wait of an approval also carries its action, and the feedback or the edited artifact.
    """

    node_id: str
    interrupt_id: str
    kind: InterruptKind | Unset = UNSET
    resume_value: Json | Unset = UNSET
    resolved_at: str | Unset = UNSET
    resolved_by: str | Unset = UNSET
    outcome: str | Unset = UNSET
    reason: str | Unset = UNSET
    action: ReceivedAction | Unset = UNSET
    refine_feedback: RefineFeedback | Unset = UNSET
    edited_artifact_data: Json | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "approval.requested": ApprovalRequested,
    "approval.received": ApprovalReceived,
    "approval.granted": ApprovalGranted,
    "approval.rejected": ApprovalRejected,
    "approval.overridden": ApprovalOverridden,
    "clarification.requested": ClarificationRequested,
    "clarification.resolved": ClarificationResolved,
    "interrupt.requested": InterruptPayload,
    "interrupt.resolved": InterruptResolved,
}
