"""Resume values: decoded and checked against their interrupt.

The rules depend on the kind of the interrupt. The run keeps waiting after an invalid value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from wopr.engine.interrupts import GOVERNANCE, Interrupt
from wopr.protocol.documents import Closed, Json, JsonObject, Unset, is_object, json_equal
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
from wopr.protocol.json_schema.validation import UserSchema


class InvalidResumeValue(ValueError):
    """A resume value that this interrupt does not accept."""

    def __init__(self, message: str, *, code: str = "validation_error", field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field or "resumeValue"


@dataclass(frozen=True, slots=True)
class ApprovalValue:
    """A vote or a decision on a gate."""

    resume: ApprovalResume


@dataclass(frozen=True, slots=True)
class GovernanceValue:
    """A decision on a governance gate."""

    is_grant: bool
    reason: str
    voter: str


@dataclass(frozen=True, slots=True)
class ClarificationValue:
    """Answers by question id."""

    answers: JsonObject


@dataclass(frozen=True, slots=True)
class DeliveredValue:
    """An external event, or the value of a custom interrupt."""

    value: Json


@dataclass(frozen=True, slots=True)
class Ratification:
    """A person's ratification of an agent's decision. `decision` is the result."""

    decision: Json
    is_rejection: bool = False


@dataclass(frozen=True, slots=True)
class TurnValue:
    """A turn of a conversation. The closing turn resumes the node."""

    content: Json
    is_close: bool
    outcome: Json = None


ResumeValue: TypeAlias = (
    ApprovalValue | GovernanceValue | ClarificationValue | DeliveredValue | Ratification | TurnValue
)


def read_resume_value(interrupt: Interrupt, value: Json) -> ResumeValue:
    """Decode a resume value. Raises `InvalidResumeValue`, which names what was expected."""
    if GOVERNANCE in interrupt.data:
        return _governance(interrupt, value)
    if interrupt.resume_schema is not None:
        _check_schema(interrupt.resume_schema, value, "resumeValue")
    match interrupt.kind:
        case "approval":
            return _approval(interrupt, value)
        case "clarification":
            return _clarification(interrupt, value)
        case "external-event":
            return _external_event(interrupt, value)
        case "low-confidence":
            return _ratification(interrupt, value)
        case "conversation.exchange":
            return _turn(interrupt, value)
        case _:
            return DeliveredValue(value)


def _check_schema(schema: JsonObject, value: Json, field: str) -> None:
    for violation in UserSchema(schema).violations(value):
        place = violation.place(field)
        raise InvalidResumeValue(f"{place}: {violation.message}", field=place)


def _approval(interrupt: Interrupt, value: Json) -> ApprovalValue:
    data = msgspec.convert(interrupt.data, ApprovalData)
    offered = data.actions
    action: Json = value.get("action") if is_object(value) else None
    if isinstance(action, str) and action not in offered:
        # The action is checked before its members.
        raise InvalidResumeValue(
            f"resumeValue.action must be one of {', '.join(offered)}, not {action}",
            field="resumeValue.action",
        )
    try:
        resume = read_approval(value)
    except msgspec.ValidationError as fault:
        raise InvalidResumeValue(
            f"resumeValue must hold one of the actions {', '.join(offered)}: {fault}"
        ) from fault
    if isinstance(resume, EditAccept) and data.required_approvals > 1:
        # The other voters have not seen the edited version, so their votes cannot apply to it.
        raise InvalidResumeValue(
            f"this gate needs {data.required_approvals} approvals of one version; "
            "refine it instead of editing it",
            field="resumeValue.action",
        )
    return ApprovalValue(resume)


class _GovernanceResume(Closed, frozen=True, kw_only=True):
    decision: Literal["granted", "rejected"]
    reason: str = ""
    voter: str = ""


def _governance(interrupt: Interrupt, value: Json) -> GovernanceValue:
    try:
        if interrupt.resume_schema is not None:
            _check_schema(interrupt.resume_schema, value, "resumeValue")
        decided = msgspec.convert(value, _GovernanceResume)
    except (InvalidResumeValue, msgspec.ValidationError) as fault:
        raise InvalidResumeValue(
            f"resumeValue must be {{decision: granted or rejected, reason}}: {fault}",
            code="INVALID_RESUME_VALUE",
        ) from fault
    return GovernanceValue(decided.decision == "granted", decided.reason, decided.voter)


def action_of(resume: ApprovalResume) -> str:
    """Return the wire name of the action."""
    tag = type(resume).__struct_config__.tag
    return str(tag)


def _clarification(interrupt: Interrupt, value: Json) -> ClarificationValue:
    try:
        answers = msgspec.convert(value, ClarificationResume).by_question()
    except msgspec.ValidationError as fault:
        raise InvalidResumeValue(
            f"resumeValue must be {{answers: {{question id: answer}}}}: {fault}"
        ) from fault
    for question in msgspec.convert(interrupt.data, ClarificationData).questions:
        field = f"resumeValue.answers.{question.id}"
        if question.id not in answers:
            raise InvalidResumeValue(f"{field} is missing: {question.question}", field=field)
        schema, answer = question.schema, answers[question.id]
        if answer in (None, {}) and not _allows_null(schema):
            word = "null" if answer is None else "an empty object"
            raise InvalidResumeValue(
                f"{field} is {word}, not an answer: {question.question}", field=field
            )
        if not isinstance(schema, Unset):
            _check_schema(schema, answer, field)
    return ClarificationValue(answers)


def _allows_null(schema: JsonObject | Unset) -> bool:
    """Return whether a question accepts null. A question without a schema does not."""
    return not isinstance(schema, Unset) and not UserSchema(schema).violations(None)


def _external_event(interrupt: Interrupt, value: Json) -> DeliveredValue:
    """Return an external event, which may be wrapped in `eventPayload`, unwrapped."""
    if not is_object(value):
        raise InvalidResumeValue("resumeValue must be the event as an object")
    expected = msgspec.convert(interrupt.data, ExternalEventData).correlation
    wrapped: Json = value.get("eventPayload")
    if is_object(wrapped) and not _mismatches(expected, wrapped):
        return DeliveredValue(wrapped)
    mismatches = _mismatches(expected, value)
    if mismatches:
        raise InvalidResumeValue(
            f"the event does not match the correlation on {', '.join(mismatches)}",
            code="correlation_mismatch",
            field=f"resumeValue.{mismatches[0]}",
        )
    return DeliveredValue(value)


def _mismatches(expected: JsonObject, event: JsonObject) -> list[str]:
    return [
        name
        for name, value in expected.items()
        if name not in event or not json_equal(event[name], value)
    ]


def _ratification(interrupt: Interrupt, value: Json) -> Ratification:
    ratified = read_ratification(interrupt.data.get("decision"), value)
    # A decision in another form may have a member `action`. An unknown action alone is not a
    # decision.
    if is_object(value) and ratified.decision == value and set(value) == {"action"}:
        raise InvalidResumeValue(
            "resumeValue.action must be accept or reject; "
            "another decision goes into resumeValue.decision",
            field="resumeValue.action",
        )
    return ratified


def read_ratification(pending: Json, value: Json) -> Ratification:
    """Decode the ratification of an agent's decision: accepted, rejected or replaced."""
    if not is_object(value):
        return Ratification(value)
    action: Json = value.get("action")
    if value.get("rejected") is True or action == "reject":
        return Ratification(pending, is_rejection=True)
    if value.get("ratified") is True or action == "accept":
        return Ratification(pending)
    if "decision" in value:
        return Ratification(value["decision"])
    return Ratification(value)


def _turn(interrupt: Interrupt, value: Json) -> TurnValue:
    if not is_object(value) or value.get("operation") not in ("exchange", "close"):
        raise InvalidResumeValue(
            "resumeValue must be {operation: exchange or close, turn: {content}}",
            field="resumeValue.operation",
        )
    turn: Json = value.get("turn", {})
    content: Json = turn.get("content") if is_object(turn) else turn
    is_close = value["operation"] == "close"
    if content is None and not is_close:
        raise InvalidResumeValue(
            "resumeValue.turn.content is missing", field="resumeValue.turn.content"
        )
    schema = msgspec.convert(interrupt.data, ConversationExchangeData).outcome_schema
    if not isinstance(schema, Unset) and content is not None:
        _check_schema(schema, content, "resumeValue.turn.content")
    return TurnValue(content, is_close, value.get("outcome", content))


def is_exchange(value: Json) -> bool:
    """Return whether a resume value is another turn of a conversation."""
    return is_object(value) and value.get("operation") == "exchange"


@dataclass(frozen=True, slots=True)
class Tally:
    """The state of a gate after a vote.

    `votes` is the number of rejections if they decide the gate, else the number of grants.
    """

    is_decided: bool
    is_granted: bool
    votes: int
    required: int


def tally(interrupt: Interrupt) -> Tally:
    """Apply the gate's quorum to the votes."""
    data = msgspec.convert(interrupt.data, ApprovalData)
    required = data.required_approvals
    vetoes = 1 if data.rejection_policy == "single-veto" else required // 2 + 1
    if interrupt.rejections >= vetoes:
        return Tally(True, False, interrupt.rejections, required)
    return Tally(interrupt.grants >= required, True, interrupt.grants, required)


def is_vote(resume: ApprovalResume) -> bool:
    """Return whether an answer counts towards a quorum.

    A refinement or an edit decides on its own.
    """
    return isinstance(resume, Accept | Reject)


def is_question(resume: ApprovalResume) -> bool:
    """Return whether an answer is a question to the requester."""
    return isinstance(resume, Ask)
