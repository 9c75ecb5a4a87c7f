"""Payloads of interrupt events: requests, decisions and resolutions."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.events.values import Count, Ordinal
from wopr.protocol.interrupts import InterruptKind, InterruptPayload, RefineFeedback

# In this older event `edit` is the action `edit-accept`.
LegacyAction: TypeAlias = Literal["accept", "reject", "refine", "edit", "ask"]
ReceivedAction: TypeAlias = Literal["accept", "reject", "refine", "edit-accept", "timeout"]


class ApprovalRequested(Document, frozen=True, kw_only=True):
    """An approval was requested, in the form for older clients."""

    node_id: str
    artifact_id: str
    artifact_type: str
    actions: Annotated[list[LegacyAction], msgspec.Meta(min_length=1)]
    interrupt_id: str | Unset = UNSET
    title: str | Unset = UNSET
    approvers_list: list[str] | Unset = UNSET
    required_approvals: Ordinal | Unset = UNSET


class ApprovalReceived(Document, frozen=True, kw_only=True):
    """An approval was decided. `decidedBy` is absent after a timeout."""

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
    """The number of votes that a gate has, and the number that it needs."""

    granted: Count | Unset = UNSET
    required: Ordinal | Unset = UNSET


class ApprovalGranted(Closed, frozen=True, kw_only=True):
    """A vote to grant at a governance gate."""

    gate_id: NonEmpty
    principal: NonEmpty
    quorum_progress: QuorumProgress | Unset = UNSET


class ApprovalRejected(Closed, frozen=True, kw_only=True):
    """A vote to reject at a governance gate."""

    gate_id: NonEmpty
    principal: NonEmpty
    reason: str | Unset = UNSET


class ApprovalOverridden(Closed, frozen=True, kw_only=True):
    """A governance gate was overridden by an authorized principal."""

    gate_id: NonEmpty
    principal: NonEmpty
    reason: NonEmpty


class AskedQuestion(Document, frozen=True, kw_only=True):
    """A question in the form for older clients."""

    id: str
    question: str
    schema: JsonObject | Unset = UNSET


class ClarificationRequested(Document, frozen=True, kw_only=True):
    """Answers to questions were requested, in the form for older clients."""

    node_id: str
    questions: list[AskedQuestion]
    interrupt_id: str | Unset = UNSET


class ClarificationResolved(Document, frozen=True, kw_only=True):
    """Questions were answered, by question id."""

    node_id: str
    answers: JsonObject
    answered_by: str | Unset = UNSET


class InterruptResolved(Document, frozen=True, kw_only=True):
    """An interrupt was resolved. After a timeout, `outcome` and `reason` are present.

    The event of an approval also has its action, and the feedback or the edited artifact.
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
