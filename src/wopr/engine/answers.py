"""Answers to interrupts: a resume value read and checked against what the interrupt asks for.

The rules are those of the interrupt kinds (resume values per kind). A value that does not fit
leaves the run waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from wopr.engine.expression_tokens import is_list, is_object
from wopr.engine.interrupts import GOVERNANCE, Interrupt
from wopr.protocol.checking import UserSchema
from wopr.protocol.documents import Closed, Json, JsonObject, Unset
from wopr.protocol.interrupts import (
    Accept,
    ApprovalData,
    ApprovalResume,
    Ask,
    ClarificationData,
    ClarificationResume,
    ConversationExchangeData,
    EditAccept,
    ExternalEventData,
    Reject,
    read_approval,
)


class AnswerRefused(ValueError):
    """A resume value that this interrupt does not take."""

    def __init__(self, message: str, *, code: str = "validation_error", field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field or "resumeValue"


@dataclass(frozen=True, slots=True)
class Approval:
    """A vote or a decision on a gate."""

    resume: ApprovalResume


@dataclass(frozen=True, slots=True)
class Governed:
    """A decision on a governance gate."""

    is_grant: bool
    reason: str
    voter: str


@dataclass(frozen=True, slots=True)
class Clarified:
    """Answers by question id."""

    answers: JsonObject


@dataclass(frozen=True, slots=True)
class Delivered:
    """An outside event, or the value of a wait that the workflow defines itself."""

    value: Json


@dataclass(frozen=True, slots=True)
class Ratified:
    """A person's word on an agent's decision; `decision` is what now stands."""

    decision: Json
    is_rejection: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a conversation; the closing one lets the node go on."""

    content: Json
    is_close: bool
    outcome: Json = None


Answer: TypeAlias = Approval | Governed | Clarified | Delivered | Ratified | Turn


def read_answer(interrupt: Interrupt, value: Json) -> Answer:
    """Read a resume value, or refuse it and say what was expected."""
    if GOVERNANCE in interrupt.data:
        return _governed(interrupt, value)
    if interrupt.resume_schema is not None:
        _check_schema(interrupt.resume_schema, value, "resumeValue")
    match interrupt.kind:
        case "approval":
            return _approval(interrupt, value)
        case "clarification":
            return _clarified(interrupt, value)
        case "external-event":
            return _delivered(interrupt, value)
        case "low-confidence":
            return _ratified(interrupt, value)
        case "conversation.exchange":
            return _turn(interrupt, value)
        case _:
            return Delivered(value)


def _check_schema(schema: JsonObject, value: Json, field: str) -> None:
    for violation in UserSchema(schema).violations(value):
        place = violation.place(field)
        raise AnswerRefused(f"{place}: {violation.message}", field=place)


def _approval(interrupt: Interrupt, value: Json) -> Approval:
    data = msgspec.convert(interrupt.data, ApprovalData)
    offered = data.actions
    action: Json = value.get("action") if is_object(value) else None
    if isinstance(action, str) and action not in offered:
        # Said before anything else: the members that another action needs do not matter here.
        raise AnswerRefused(
            f"resumeValue.action must be one of {', '.join(offered)}, not {action}",
            field="resumeValue.action",
        )
    try:
        resume = read_approval(value)
    except msgspec.ValidationError as fault:
        raise AnswerRefused(
            f"resumeValue must hold one of the actions {', '.join(offered)}: {fault}"
        ) from fault
    if isinstance(resume, EditAccept) and data.required_approvals > 1:
        # Nobody else has seen the edited version, so no vote can have been for it.
        raise AnswerRefused(
            f"this gate needs {data.required_approvals} approvals of one version; "
            "refine it instead of editing it",
            field="resumeValue.action",
        )
    return Approval(resume)


class _GovernanceResume(Closed, frozen=True, kw_only=True):
    decision: Literal["granted", "rejected"]
    reason: str = ""
    voter: str = ""


def _governed(interrupt: Interrupt, value: Json) -> Governed:
    try:
        if interrupt.resume_schema is not None:
            _check_schema(interrupt.resume_schema, value, "resumeValue")
        said = msgspec.convert(value, _GovernanceResume)
    except (AnswerRefused, msgspec.ValidationError) as fault:
        raise AnswerRefused(
            f"resumeValue must be {{decision: granted or rejected, reason}}: {fault}",
            code="INVALID_RESUME_VALUE",
        ) from fault
    return Governed(said.decision == "granted", said.reason, said.voter)


def action_of(resume: ApprovalResume) -> str:
    """The action's name on the wire."""
    tag = type(resume).__struct_config__.tag
    return str(tag)


def _clarified(interrupt: Interrupt, value: Json) -> Clarified:
    try:
        answers = msgspec.convert(value, ClarificationResume).by_question()
    except msgspec.ValidationError as fault:
        raise AnswerRefused(
            f"resumeValue must be {{answers: {{question id: answer}}}}: {fault}"
        ) from fault
    for question in msgspec.convert(interrupt.data, ClarificationData).questions:
        field = f"resumeValue.answers.{question.id}"
        if question.id not in answers:
            raise AnswerRefused(f"{field} is missing: {question.question}", field=field)
        schema, answer = question.schema, answers[question.id]
        if answer in (None, {}) and not _allows_null(schema):
            word = "null" if answer is None else "an empty object"
            raise AnswerRefused(
                f"{field} is {word}, not an answer: {question.question}", field=field
            )
        if not isinstance(schema, Unset):
            _check_schema(schema, answer, field)
    return Clarified(answers)


def _allows_null(schema: JsonObject | Unset) -> bool:
    """Tell whether a question says that null is an answer; one without a schema does not."""
    return not isinstance(schema, Unset) and not UserSchema(schema).violations(None)


def _delivered(interrupt: Interrupt, value: Json) -> Delivered:
    """An event comes as it is, or wrapped in `eventPayload`; the node gets it as it is."""
    if not is_object(value):
        raise AnswerRefused("resumeValue must be the event as an object")
    wanted = msgspec.convert(interrupt.data, ExternalEventData).correlation
    wrapped: Json = value.get("eventPayload")
    if is_object(wrapped) and not _missed(wanted, wrapped):
        return Delivered(wrapped)
    missed = _missed(wanted, value)
    if missed:
        raise AnswerRefused(
            f"the event does not match the correlation on {', '.join(missed)}",
            code="correlation_mismatch",
            field=f"resumeValue.{missed[0]}",
        )
    return Delivered(value)


def _missed(wanted: JsonObject, event: JsonObject) -> list[str]:
    return [
        name
        for name, expected in wanted.items()
        if name not in event or not _is_same(event[name], expected)
    ]


def _is_same(left: Json, right: Json) -> bool:
    """Equality as JSON has it: to Python, `true` would equal 1."""
    if is_object(left) and is_object(right):
        return left.keys() == right.keys() and all(_is_same(left[k], right[k]) for k in left)
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ratified(interrupt: Interrupt, value: Json) -> Ratified:
    said = read_ratification(interrupt.data.get("decision"), value)
    # A decision of another form may well have an action of its own; an unknown word alone is none.
    if is_object(value) and said.decision == value and set(value) == {"action"}:
        raise AnswerRefused(
            "resumeValue.action must be accept or reject; "
            "another decision goes into resumeValue.decision",
            field="resumeValue.action",
        )
    return said


def read_ratification(pending: Json, value: Json) -> Ratified:
    """What a person says to an agent's decision: it stands, it does not, or this one instead."""
    if not is_object(value):
        return Ratified(value)
    action: Json = value.get("action")
    if value.get("rejected") is True or action == "reject":
        return Ratified(pending, is_rejection=True)
    if value.get("ratified") is True or action == "accept":
        return Ratified(pending)
    if "decision" in value:
        return Ratified(value["decision"])
    return Ratified(value)


def _turn(interrupt: Interrupt, value: Json) -> Turn:
    if not is_object(value) or value.get("operation") not in ("exchange", "close"):
        raise AnswerRefused(
            "resumeValue must be {operation: exchange or close, turn: {content}}",
            field="resumeValue.operation",
        )
    turn: Json = value.get("turn", {})
    content: Json = turn.get("content") if is_object(turn) else turn
    is_close = value["operation"] == "close"
    if content is None and not is_close:
        raise AnswerRefused("resumeValue.turn.content is missing", field="resumeValue.turn.content")
    schema = msgspec.convert(interrupt.data, ConversationExchangeData).outcome_schema
    if not isinstance(schema, Unset) and content is not None:
        _check_schema(schema, content, "resumeValue.turn.content")
    return Turn(content, is_close, value.get("outcome", content))


def is_exchange(value: Json) -> bool:
    """Whether this would be another turn of a conversation."""
    return is_object(value) and value.get("operation") == "exchange"


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a gate stands after a vote; `votes` are the rejections once they decide."""

    is_decided: bool
    is_granted: bool
    votes: int
    required: int


def tally(interrupt: Interrupt) -> Tally:
    """Apply the gate's quorum to the votes so far."""
    data = msgspec.convert(interrupt.data, ApprovalData)
    required = data.required_approvals
    vetoes = 1 if data.rejection_policy == "single-veto" else required // 2 + 1
    if interrupt.rejections >= vetoes:
        return Tally(True, False, interrupt.rejections, required)
    return Tally(interrupt.grants >= required, True, interrupt.grants, required)


def is_vote(resume: ApprovalResume) -> bool:
    """Whether this counts towards a quorum; a refinement or an edit decides by itself."""
    return isinstance(resume, Accept | Reject)


def is_question(resume: ApprovalResume) -> bool:
    """Whether this only asks back."""
    return isinstance(resume, Ask)
