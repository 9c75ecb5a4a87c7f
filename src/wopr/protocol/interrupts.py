"""Interrupts on the wire: the closed request, and per kind its data and its resume value."""

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
# The form of an interrupt kind that a host adds itself (RFC 0044).
VENDOR_KIND_PATTERN: Final = r"x-host-[a-z][a-z0-9-]*-[a-z][a-z0-9-]*"
# The member of `node.suspended` and `interrupt.resolved` that names such a kind where the event's
# `kind` is `custom`.
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
    """Who is told of an approval, which is not who may decide it."""

    subjects: list[str] | Unset = UNSET
    groups: list[str] | Unset = UNSET
    roles: list[str] | Unset = UNSET


class ApprovalData(Document, frozen=True, kw_only=True):
    """What an approver sees, and how many of them it takes."""

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
            raise ValueError("actions must not name an action twice")


class Question(Closed, frozen=True, kw_only=True):
    """One thing to clarify; `schema` is what its answer must satisfy."""

    id: NonEmpty
    question: NonEmpty
    schema: JsonObject | Unset = UNSET


class ClarificationData(Closed, frozen=True, kw_only=True):
    """The questions that a person has to answer, all of them."""

    questions: Annotated[list[Question], msgspec.Meta(min_length=1)]
    context_type: str | Unset = UNSET


class ExternalEventData(Closed, frozen=True, kw_only=True):
    """The event to wait for: each key of `correlation` must be in it with an equal value."""

    event_type: str
    correlation: JsonObject


class CustomData(Closed, frozen=True, kw_only=True):
    """A wait whose meaning belongs to the workflow's author."""

    custom_kind: NonEmpty
    payload: Json | Unset = UNSET


# A bare conversation id satisfies both the opening and the closing shape, and a document that
# satisfies two branches of the request's `oneOf` is invalid: each side must say one thing more.
class ConversationStartData(Closed, frozen=True, kw_only=True):
    """The opening of a conversation."""

    conversation_id: ConversationId
    title: str | Unset = UNSET
    initial_prompt: str | Unset = UNSET

    def __post_init__(self) -> None:
        if self.title is UNSET and self.initial_prompt is UNSET:
            raise ValueError("conversation.start needs title or initialPrompt")


class ConversationExchangeData(Closed, frozen=True, kw_only=True):
    """One turn that the run waits for."""

    conversation_id: ConversationId
    prompt: NonEmpty
    outcome_schema: JsonObject | Unset = UNSET
    turn_index: Annotated[int, msgspec.Meta(ge=0)] | Unset = UNSET


class ConversationCloseData(Closed, frozen=True, kw_only=True):
    """The end of a conversation; nothing may follow under its id."""

    conversation_id: ConversationId
    reason: str | Unset = UNSET

    def __post_init__(self) -> None:
        if self.reason is UNSET:
            raise ValueError("conversation.close needs reason")


class LowConfidenceData(Closed, frozen=True, kw_only=True):
    """A decision that its agent did not trust enough to act on."""

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
DATA: Final[dict[InterruptKind, type[InterruptData]]] = {
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
    """Tell whether this is the name of an interrupt kind that a host adds itself."""
    return _VENDOR_KIND.fullmatch(kind) is not None


def is_kind(kind: str) -> bool:
    """Tell whether this is an interrupt kind of the protocol or the form of a host's own."""
    return kind in DATA or is_vendor_kind(kind)


# Every legal kind, in words.
KINDS_IN_WORDS: Final = f"{', '.join(DATA)} or a host's own x-host-<host>-<kind>"


class InterruptPayload(Closed, frozen=True, kw_only=True):
    """A request to wait. Its data is checked against its kind as it is built."""

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
        """Read `data` as the struct of this kind."""
        return msgspec.convert(self.data, DATA[self.kind])


class RefineFeedback(Document, frozen=True, kw_only=True):
    """What to change, and where."""

    scope: Literal["whole", "section", "items"]
    section_path: str | Unset = UNSET
    item_ids: list[str] | Unset = UNSET
    tags: list[str] | Unset = UNSET
    text: str | Unset = UNSET


class Vote(Document, frozen=True, kw_only=True):
    """What every decision of an approval may add; `voter` tells apart users of a shared key."""

    feedback: str | Unset = UNSET
    decided_at: str | Unset = UNSET
    voter: NonEmpty | Unset = UNSET


class Accept(Vote, frozen=True, kw_only=True, tag_field="action", tag="accept"):
    """The artifact is good."""


class Reject(Vote, frozen=True, kw_only=True, tag_field="action", tag="reject"):
    """The artifact is not good, and no second try is wanted."""


class Refine(Vote, frozen=True, kw_only=True, tag_field="action", tag="refine"):
    """Try again, with this feedback."""

    refine_feedback: RefineFeedback


class EditAccept(Vote, frozen=True, kw_only=True, tag_field="action", tag="edit-accept"):
    """Good, as edited here."""

    edited_artifact_data: Json


class Ask(Vote, frozen=True, kw_only=True, tag_field="action", tag="ask"):
    """A question back; it is recorded, and the interrupt stays open."""

    question: str | Unset = UNSET


ApprovalResume: TypeAlias = Accept | Reject | Refine | EditAccept | Ask


class LegacyDecision(Document, frozen=True, kw_only=True):
    """An approval's resume value as older clients write it."""

    decision: Literal["approved", "rejected"]
    feedback: str | Unset = UNSET

    def modern(self) -> ApprovalResume:
        """The same decision in today's form; a rejection with feedback asks for another try."""
        if self.decision == "approved":
            return Accept(feedback=self.feedback)
        if self.feedback is UNSET:
            return Reject()
        return Refine(refine_feedback=RefineFeedback(scope="whole", text=self.feedback))


def read_approval(value: Json) -> ApprovalResume:
    """Read an approval's resume value, old or new. Raises `msgspec.ValidationError`."""
    if isinstance(value, dict) and "decision" in value and "action" not in value:
        return msgspec.convert(value, LegacyDecision).modern()
    # `convert` cannot name a union's type to a checker; the annotation does.
    read: ApprovalResume = msgspec.convert(value, ApprovalResume)
    return read


class Answer(Document, frozen=True, kw_only=True):
    """One answer in the list form of a clarification's resume value."""

    id: NonEmpty
    answer: Json


class ClarificationResume(Document, frozen=True, kw_only=True):
    """Answers by question id; the list form is read and turned into the map."""

    answers: JsonObject | list[Answer]

    def by_question(self) -> JsonObject:
        """The answers as the event records them."""
        if isinstance(self.answers, dict):
            return self.answers
        return {answer.id: answer.answer for answer in self.answers}


class ResolveInterrupt(Closed, frozen=True, kw_only=True):
    """The body that resolves an interrupt, by run and node or by token."""

    resume_value: Json


class AnswerTaken(Document, frozen=True, kw_only=True):
    """What an answer led to: the run's status right after it."""

    run_id: Id
    node_id: NonEmpty
    status: RunStatus
