"""Interrupts on the wire: the request, and the data and the resume value of each kind."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from wopr.protocol.agents import AgentId
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
from wopr.protocol.runs import RunStatus

InterruptKind: TypeAlias = Literal[
    "approval",
    "clarification",
    "external-event",
    "custom",
    "conversation.start",
    "conversation.exchange",
    "conversation.close",
    "low-confidence",
]
# The pattern of vendor interrupt kinds (RFC 0044).
VENDOR_KIND_PATTERN: Final = r"x-host-[a-z][a-z0-9-]*-[a-z][a-z0-9-]*"
# The member of `node.suspended` and `interrupt.resolved` that has the vendor kind, if the `kind` of
# the event is `custom`.
INTERRUPT_KIND: Final = "x-host-wopr-interrupt-kind"
_VENDOR_KIND: Final = re.compile(VENDOR_KIND_PATTERN)
ApprovalAction: TypeAlias = Literal["accept", "reject", "refine", "edit-accept", "ask"]
ConversationId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Actions = Annotated[
    list[ApprovalAction],
    msgspec.Meta(min_length=1, extra_json_schema={"uniqueItems": True}),
]


class Audience(Closed, frozen=True, kw_only=True):
    """The recipients of the notification of an approval. They need not be its approvers."""

    subjects: list[str] | Unset = UNSET
    groups: list[str] | Unset = UNSET
    roles: list[str] | Unset = UNSET


class ApprovalData(Document, frozen=True, kw_only=True):
    """The data of an approval, and the number of approvers that it needs."""

    artifact_id: NonEmpty
    artifact_type: NonEmpty
    title: NonEmpty
    actions: _Actions
    description: str | Unset = UNSET
    artifact_data: Json | Unset = UNSET
    required_approvals: Annotated[int, msgspec.Meta(ge=1)] = 1
    approvers_list: list[str] | Unset = UNSET
    rejection_policy: Literal["single-veto", "majority"] = "single-veto"
    override_bypasses_quorum: bool = False
    approver_group_refs: list[str] | Unset = UNSET
    approver_role_refs: list[str] | Unset = UNSET
    audience: Audience | Unset = UNSET

    def __post_init__(self) -> None:
        if len(set(self.actions)) != len(self.actions):
            raise ValueError("actions must not have an action twice")


class Question(Closed, frozen=True, kw_only=True):
    """A question. `schema` is the JSON Schema of its answer."""

    id: NonEmpty
    question: NonEmpty
    schema: JsonObject | Unset = UNSET


class ClarificationData(Closed, frozen=True, kw_only=True):
    """The questions that a person has to answer."""

    questions: Annotated[list[Question], msgspec.Meta(min_length=1)]
    context_type: str | Unset = UNSET


class ExternalEventData(Closed, frozen=True, kw_only=True):
    """The event to wait for. It must have each member of `correlation` with an equal value."""

    event_type: str
    correlation: JsonObject


class CustomData(Closed, frozen=True, kw_only=True):
    """An interrupt whose meaning the author of the workflow defines."""

    custom_kind: NonEmpty
    payload: Json | Unset = UNSET


# Data with only a conversation id would match the schemas of both the opening and the closing, and
# `oneOf` allows one match. So each needs one more member.
class ConversationStartData(Closed, frozen=True, kw_only=True):
    """The opening of a conversation."""

    conversation_id: ConversationId
    title: str | Unset = UNSET
    initial_prompt: str | Unset = UNSET

    def __post_init__(self) -> None:
        if self.title is UNSET and self.initial_prompt is UNSET:
            raise ValueError("conversation.start needs title or initialPrompt")


class ConversationExchangeData(Closed, frozen=True, kw_only=True):
    """A turn for which the run waits."""

    conversation_id: ConversationId
    prompt: NonEmpty
    outcome_schema: JsonObject | Unset = UNSET
    turn_index: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET


class ConversationCloseData(Closed, frozen=True, kw_only=True):
    """The end of a conversation. No turn may follow with its id."""

    conversation_id: ConversationId
    reason: str | Unset = UNSET

    def __post_init__(self) -> None:
        if self.reason is UNSET:
            raise ValueError("conversation.close needs reason")


class LowConfidenceData(Closed, frozen=True, kw_only=True):
    """A decision of an agent with a confidence below the threshold."""

    agent_id: AgentId
    threshold: _Ratio
    observed: _Ratio
    decision: Json | Unset = UNSET


InterruptData: TypeAlias = (
    ApprovalData
    | ClarificationData
    | ExternalEventData
    | CustomData
    | ConversationStartData
    | ConversationExchangeData
    | ConversationCloseData
    | LowConfidenceData
)
DATA_TYPES: Final[dict[InterruptKind, type[InterruptData]]] = {
    "approval": ApprovalData,
    "clarification": ClarificationData,
    "external-event": ExternalEventData,
    "custom": CustomData,
    "conversation.start": ConversationStartData,
    "conversation.exchange": ConversationExchangeData,
    "conversation.close": ConversationCloseData,
    "low-confidence": LowConfidenceData,
}


def is_vendor_kind(kind: str) -> bool:
    """Return whether this is a vendor interrupt kind."""
    return _VENDOR_KIND.fullmatch(kind) is not None


def is_interrupt_kind(kind: str) -> bool:
    """Return whether this is an interrupt kind of the protocol or of a vendor."""
    return kind in DATA_TYPES or is_vendor_kind(kind)


# All valid kinds, for messages.
KINDS_IN_WORDS: Final = f"{', '.join(DATA_TYPES)} or a vendor kind x-host-<host>-<kind>"


class InterruptPayload(Closed, frozen=True, kw_only=True):
    """The request of an interrupt. Its data is checked against its kind."""

    kind: InterruptKind
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    data: JsonObject
    resume_schema: JsonObject | Unset = UNSET
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET

    def __post_init__(self) -> None:
        try:
            self.typed_data()
        except msgspec.ValidationError as fault:
            raise ValueError(f"data of kind {self.kind}: {fault}") from fault

    def typed_data(self) -> InterruptData:
        """Decode `data` as the struct of this kind."""
        return msgspec.convert(self.data, DATA_TYPES[self.kind])


class RefineFeedback(Document, frozen=True, kw_only=True):
    """Requested changes."""

    scope: Literal["whole", "section", "items"]
    section_path: str | Unset = UNSET
    item_ids: list[str] | Unset = UNSET
    tags: list[str] | Unset = UNSET
    text: str | Unset = UNSET


class Vote(Document, frozen=True, kw_only=True):
    """Members of every approval decision. `voter` distinguishes users of a shared key."""

    feedback: str | Unset = UNSET
    decided_at: str | Unset = UNSET
    voter: NonEmpty | Unset = UNSET


class Accept(Vote, frozen=True, kw_only=True, tag_field="action", tag="accept"):
    """Accept the artifact."""


class Reject(Vote, frozen=True, kw_only=True, tag_field="action", tag="reject"):
    """Reject the artifact without a request for changes."""


class Refine(Vote, frozen=True, kw_only=True, tag_field="action", tag="refine"):
    """Request another version, with feedback."""

    refine_feedback: RefineFeedback


class EditAccept(Vote, frozen=True, kw_only=True, tag_field="action", tag="edit-accept"):
    """Accept an edited version of the artifact."""

    edited_artifact_data: Json


class Ask(Vote, frozen=True, kw_only=True, tag_field="action", tag="ask"):
    """Ask the requester a question. It is recorded, and the interrupt stays open."""

    question: str | Unset = UNSET


ApprovalResume: TypeAlias = Accept | Reject | Refine | EditAccept | Ask


class LegacyDecision(Document, frozen=True, kw_only=True):
    """The resume value of an approval in the form of older clients."""

    decision: Literal["approved", "rejected"]
    feedback: str | Unset = UNSET

    def to_current_form(self) -> ApprovalResume:
        """Return the decision in its current form. A rejection with feedback is a refinement."""
        if self.decision == "approved":
            return Accept(feedback=self.feedback)
        if self.feedback is UNSET:
            return Reject()
        return Refine(refine_feedback=RefineFeedback(scope="whole", text=self.feedback))


def read_approval(value: Json) -> ApprovalResume:
    """Decode the resume value of an approval, old or new. Raises `msgspec.ValidationError`."""
    if isinstance(value, dict) and "decision" in value and "action" not in value:
        return msgspec.convert(value, LegacyDecision).to_current_form()
    # Type checkers do not know the result type of `convert` for a union.
    read: ApprovalResume = msgspec.convert(value, ApprovalResume)
    return read


class Answer(Document, frozen=True, kw_only=True):
    """One answer in the list form of a clarification's resume value."""

    id: NonEmpty
    answer: Json


class ClarificationResume(Document, frozen=True, kw_only=True):
    """Answers by question id, as an object or as a list."""

    answers: JsonObject | list[Answer]

    def by_question(self) -> JsonObject:
        """Return the answers by question id, as the event has them."""
        if isinstance(self.answers, dict):
            return self.answers
        return {answer.id: answer.answer for answer in self.answers}


class ResolveInterrupt(Closed, frozen=True, kw_only=True):
    """The body that resolves an interrupt, by run and node or by token."""

    resume_value: Json


class AnswerTaken(Document, frozen=True, kw_only=True):
    """The result of an answer: the status of the run after it."""

    run_id: Id
    node_id: NonEmpty
    status: RunStatus


class Asker(Document, frozen=True, kw_only=True):
    """The origin of an interrupt: node, workflow, agent, and the principal that started the run."""

    node_name: str
    workflow_id: str
    agent_id: str | Unset = UNSET
    started_by: str | Unset = UNSET


class Votes(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The votes so far on a gate that needs several approvals."""

    granted: int
    rejected: int
    required: int


class InboxItem(Document, frozen=True, kw_only=True):
    """An open interrupt: its origin, its question, the effect of each answer, and its deadline.

    Attributes:
        interrupt_id: The interrupt's id.
        run_id: The run that waits.
        node_id: The node that waits.
        workflow_id: The run's workflow.
        kind: The kind of the interrupt, such as `approval` or `clarification`.
        key: The interrupt's key within its node.
        status: The interrupt's status.
        requested_at: When the node asked, as an ISO 8601 time.
        question: The question in one line.
        asked_by: The origin of the interrupt.
        data: The interrupt's data.
        answers: The possible answers, with the effect of each.
        answer_url: The URL to send the answer to.
        age_ms: Milliseconds since the node asked. Only listings have it.
        expires_at: When the interrupt expires.
        reason: Why the node asks.
        resume_schema: The JSON Schema of the answer.
        timeout_ms: How long the interrupt waits, in milliseconds.
        votes: The votes so far. Only gates that need several approvals have them.
    """

    interrupt_id: str
    run_id: str
    node_id: str
    workflow_id: str
    kind: str
    key: str
    status: str
    requested_at: str
    question: str
    asked_by: Asker
    data: JsonObject
    answers: dict[str, str]
    answer_url: str
    age_ms: int | Unset = UNSET
    expires_at: str | Unset = UNSET
    reason: str | Unset = UNSET
    resume_schema: JsonObject | Unset = UNSET
    timeout_ms: int | Unset = UNSET
    votes: Votes | Unset = UNSET
