"""Forms that answer interrupts: buttons and fields, and the resume value of a submitted form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wopr.console.forms import Field, Form, field_text, fields_of, members_of, read_field, value_of
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, list_of, object_of
from wopr.protocol.errors import Refused
from wopr.protocol.interrupts import InboxItem
from wopr.protocol.json_schema.validation import UserSchema
from wopr.runs.interrupts.approvals import governance_of


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """An answer with its own button."""

    name: str
    title: str
    key: str = ""
    tone: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """All answers to one interrupt.

    `edit_fields` are the fields for the replacement of the artifact or decision.
    """

    choices: Sequence[AnswerChoice]
    fields: Sequence[Field] = ()
    edit: AnswerChoice | None = None
    edit_fields: Sequence[Field] = ()
    read: Callable[[str, Form], Json]

    @property
    def names(self) -> tuple[str, ...]:
        """The values of the buttons."""
        edit = () if self.edit is None else (self.edit.name,)
        return (*(choice.name for choice in self.choices), *edit)

    def value(self, form: Form) -> Json:
        """Return the answer of a filled form. Raises `Refused` with the invalid field."""
        return self.read(form.choice("answer", self.names), form)

    def with_submitted(self, form: Form, refused: Refused) -> AnswerForm:
        """Return the form with the values that were sent and the error at its field."""
        path = str(refused.details.get("field", ""))

        def refill(field: Field) -> Field:
            return field.with_value(form).with_problem(path, refused.message)

        return replace(
            self,
            fields=[refill(field) for field in self.fields],
            edit_fields=[refill(field) for field in self.edit_fields],
        )

    @property
    def has_problem(self) -> bool:
        """Return whether a field has an error message."""
        return any(field.problem for field in (*self.fields, *self.edit_fields))


CHOICES: Final = {
    "accept": AnswerChoice("accept", "Accept", "a", "primary"),
    "reject": AnswerChoice("reject", "Reject", "r", "danger"),
    "refine": AnswerChoice("refine", "Send back", "s"),
    "ask": AnswerChoice("ask", "Ask a question", "q"),
    "edit-accept": AnswerChoice("edit-accept", "Accept my version", "e"),
    "granted": AnswerChoice("granted", "Grant", "a", "primary"),
    "rejected": AnswerChoice("rejected", "Reject", "r", "danger"),
    "decision": AnswerChoice("decision", "Use this decision", "e"),
    "answers": AnswerChoice("answers", "Answer", "a", "primary"),
    "exchange": AnswerChoice("exchange", "Send", "a", "primary"),
    "close": AnswerChoice("close", "Close the conversation", "r"),
    "value": AnswerChoice("value", "Answer", "a", "primary"),
}


VALUE: Final = "resumeValue"
# Members of an approval that the protocol defines. A schema may require others too.
_PROTOCOL_MEMBERS: Final = frozenset(
    "action feedback decidedAt voter refineFeedback editedArtifactData question decision".split()
)
_REASON: Final = Field(
    name="reason", path=f"{VALUE}.feedback", title="Reason, feedback or question", kind="long"
)


def answer_form_of(item: InboxItem) -> AnswerForm | None:
    """Return the form for an interrupt; None if only an external system can answer it."""
    if item.kind == "external-event":
        return None
    if governance_of(item.data) is not None:
        return _governance_form(item)
    return _FORMS.get(item.kind, _custom_form)(item)


def _choices(item: InboxItem, *names: str) -> list[AnswerChoice]:
    effects = item.answers
    return [replace(CHOICES[name], effect=effects[name]) for name in names if name in effects]


def _schema(item: InboxItem) -> JsonObject:
    return {} if isinstance(item.resume_schema, Unset) else item.resume_schema


def _approval_form(item: InboxItem) -> AnswerForm:
    extra = _extra_schema(_schema(item))
    extras = fields_of(extra, "extra", VALUE, "") if extra else []
    artifact = _replacement_field("editedArtifactData", item.data.get("artifactData", UNSET))

    def read(name: str, form: Form) -> Json:
        more: JsonObject = value_of(extras, form, extra) if extras else {}
        return _approval_value(name, form.get("reason"), artifact, form) | more

    return AnswerForm(
        choices=_choices(item, "accept", "reject", "refine", "ask"),
        fields=[*extras, _REASON],
        edit=next(iter(_choices(item, "edit-accept")), None),
        edit_fields=[artifact],
        read=read,
    )


def _approval_value(name: str, reason: str, artifact: Field, form: Form) -> JsonObject:
    if name == "refine":
        feedback = {"scope": "whole", "text": _require_text(reason, "what to change")}
        return {"action": name, "refineFeedback": feedback}
    if name == "ask":
        return {"action": name, "question": _require_text(reason, "the question")}
    answer: JsonObject = {"action": name}
    if reason:
        answer["feedback"] = reason
    if name == "edit-accept":
        answer["editedArtifactData"] = _replacement_value(artifact, form)
    return answer


def _extra_schema(schema: JsonObject) -> JsonObject:
    """Return the part of a gate's schema that goes beyond the members of the protocol."""
    members = {
        key: each for key, each in members_of(schema).items() if key not in _PROTOCOL_MEMBERS
    }
    return {**schema, "properties": members} if members else {}


def _require_text(text: str, what: str) -> str:
    if not text:
        raise Refused(f"{_REASON.path}: enter {what}", field=_REASON.path)
    return text


def _replacement_field(member: str, current: Json) -> Field:
    """Return the field for a replacement. A text is edited as text, other values as JSON."""
    is_text = isinstance(current, str)
    return Field(
        name="edited",
        path=f"{VALUE}.{member}",
        title="Your version" if is_text else "Your version, as JSON",
        kind="long" if is_text else "json",
        value=""
        if isinstance(current, Unset)
        else field_text(current, "long" if is_text else "json"),
    )


def _replacement_value(field: Field, form: Form) -> Json:
    value = read_field(field, form)
    if isinstance(value, Unset):
        raise Refused(f"{field.path}: enter the replacement", field=field.path)
    return value


def _governance_form(item: InboxItem) -> AnswerForm:
    field = replace(_REASON, path=f"{VALUE}.reason", title="Reason")

    def read(name: str, form: Form) -> Json:
        reason = form.get("reason")
        return {"decision": name} | ({"reason": reason} if reason else {})

    return AnswerForm(choices=_choices(item, "granted", "rejected"), fields=[field], read=read)


def _clarification_form(item: InboxItem) -> AnswerForm:
    questions = [object_of(question) for question in list_of(item.data.get("questions"))]
    forms = [_question_fields(question) for question in questions]

    def read(name: str, form: Form) -> Json:
        answers: JsonObject = {}
        for question, fields in zip(questions, forms, strict=True):
            value = value_of(fields, form, _question_schema(question))
            if not isinstance(value, Unset):
                answers[str(question["id"])] = value
        return {"answers": answers}

    every = [field for fields in forms for field in fields]
    return AnswerForm(choices=_choices(item, "answers"), fields=every, read=read)


def _question_schema(question: JsonObject) -> JsonObject:
    """Return the schema of an answer. A question without a schema accepts a text."""
    return object_of(question.get("schema")) or {"type": "string", "maxLength": 4000}


def _question_fields(question: JsonObject) -> list[Field]:
    schema, name = _question_schema(question), str(question["id"])
    path, text = f"{VALUE}.answers.{name}", str(question["question"])
    fields = fields_of(schema, f"answer.{name}", path, text)
    if members_of(schema):
        return [replace(field, title=f"{text} {field.title}") for field in fields]
    return [replace(fields[0], title=text)]


def _low_confidence_form(item: InboxItem) -> AnswerForm:
    decision = _replacement_field("decision", item.data.get("decision", UNSET))

    def read(name: str, form: Form) -> Json:
        if name == "decision":
            return {"decision": _replacement_value(decision, form)}
        reason = form.get("reason")
        return {"action": name} | ({"feedback": reason} if reason else {})

    choices = [
        replace(choice, title="Ratify") if choice.name == "accept" else choice
        for choice in _choices(item, "accept", "reject")
    ]
    return AnswerForm(
        choices=choices,
        fields=[replace(_REASON, title="Reason")],
        edit=next(iter(_choices(item, "decision")), None),
        edit_fields=[decision],
        read=read,
    )


def _conversation_form(item: InboxItem) -> AnswerForm:
    schema = object_of(item.data.get("outcomeSchema")) or {"type": "string", "maxLength": 4000}
    fields = fields_of(schema, "turn", f"{VALUE}.turn.content", "Your message")

    def read(name: str, form: Form) -> Json:
        answer = value_of(fields, form, schema)
        turn: JsonObject = {"turn": {"content": answer}} if answer not in (UNSET, {}) else {}
        return {"operation": name} | turn

    return AnswerForm(choices=_choices(item, "exchange", "close"), fields=fields, read=read)


# Short answers to a custom interrupt. Each is offered if the interrupt's schema accepts it.
_SHORT: Final[dict[str, tuple[Json, ...]]] = {
    "accept": ({"action": "accept"}, "accept"),
    "reject": ({"action": "reject"}, "reject"),
}


def _custom_form(item: InboxItem) -> AnswerForm:
    """Return the form of a custom interrupt: the fields of its schema, else one JSON field."""
    schema = _schema(item)
    short = _short_answers(schema)
    fields = fields_of(schema, "value", VALUE, "Your answer", is_required=not short)

    def read(name: str, form: Form) -> Json:
        if name in short:
            return short[name]
        value = value_of(fields, form, schema)
        if isinstance(value, Unset):
            raise Refused(f"{VALUE}: enter an answer", field=VALUE)
        return value

    effects = _SHORT_EFFECTS | item.answers
    given = [replace(CHOICES[name], effect=effects[name]) for name in short]
    values = _choices(item, "value")
    if short:
        values = [replace(each, title="Send this answer", key="e", tone="") for each in values]
    return AnswerForm(choices=[*given, *values], fields=fields, read=read)


_SHORT_EFFECTS: Final = {
    "accept": "The run continues with your acceptance.",
    "reject": "The run continues with your rejection.",
}


def _short_answers(schema: JsonObject) -> dict[str, Json]:
    if not schema or members_of(schema):
        return {}
    compiled = UserSchema(schema)
    found = {
        name: next((value for value in values if compiled.is_valid_inline(value)), UNSET)
        for name, values in _SHORT.items()
    }
    return {name: value for name, value in found.items() if not isinstance(value, Unset)}


_FORMS: Final[dict[str, Callable[[InboxItem], AnswerForm]]] = {
    "approval": _approval_form,
    "clarification": _clarification_form,
    "low-confidence": _low_confidence_form,
    "conversation.exchange": _conversation_form,
}


def quick_value(item: InboxItem, name: str, reason: str) -> Json:
    """Return the resume value of accept or reject; `UNSET` if it is not a valid answer."""
    form = answer_form_of(item)
    names = {"accept": ("accept", "granted"), "reject": ("reject", "rejected")}[name]
    offered = [] if form is None else [each for each in form.names if each in names]
    if form is None or not offered:
        return UNSET
    return form.read(offered[0], Form({"reason": reason}))
