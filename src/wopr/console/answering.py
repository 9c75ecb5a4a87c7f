"""The answers that a wait takes: buttons and fields from what it asks for, and back to a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wopr.console.form import Form
from wopr.console.json_values import list_of, object_of
from wopr.console.offer import CHOICES, Choice, Offer
from wopr.console.schema_fields import (
    Field,
    fields_of,
    members_of,
    read_field,
    value_of,
    written,
)
from wopr.protocol.checking import UserSchema
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.errors import Refused
from wopr.runtime.entitled import governance_of
from wopr.runtime.inbox import InboxItem

VALUE: Final = "resumeValue"
# Members of an approval that the protocol gives a meaning; a schema may ask for others too.
_OWN: Final = frozenset(
    "action feedback decidedAt voter refineFeedback editedArtifactData question decision".split()
)
_REASON: Final = Field(
    name="reason", path=f"{VALUE}.feedback", title="Reason, feedback or question", kind="long"
)


def offer_of(item: InboxItem) -> Offer | None:
    """What can be answered here; None for what only the outside can answer."""
    if item.kind == "external-event":
        return None
    if governance_of(item.data) is not None:
        return _governance(item)
    return _OFFERS.get(item.kind, _custom)(item)


def _choices(item: InboxItem, *names: str) -> list[Choice]:
    told = item.answers
    return [replace(CHOICES[name], effect=told[name]) for name in names if name in told]


def _schema(item: InboxItem) -> JsonObject:
    return {} if isinstance(item.resume_schema, Unset) else item.resume_schema


def _approval(item: InboxItem) -> Offer:
    extra = _extra_schema(_schema(item))
    extras = fields_of(extra, "extra", VALUE, "") if extra else []
    artifact = _replacement("editedArtifactData", item.data.get("artifactData", UNSET))

    def read(name: str, form: Form) -> Json:
        more: JsonObject = value_of(extras, form, extra) if extras else {}
        return _approved(name, form.get("reason"), artifact, form) | more

    return Offer(
        choices=_choices(item, "accept", "reject", "refine", "ask"),
        fields=[*extras, _REASON],
        edit=next(iter(_choices(item, "edit-accept")), None),
        edited=[artifact],
        read=read,
    )


def _approved(name: str, reason: str, artifact: Field, form: Form) -> JsonObject:
    if name == "refine":
        feedback = {"scope": "whole", "text": _needed(reason, "what to change")}
        return {"action": name, "refineFeedback": feedback}
    if name == "ask":
        return {"action": name, "question": _needed(reason, "the question")}
    said: JsonObject = {"action": name}
    if reason:
        said["feedback"] = reason
    if name == "edit-accept":
        said["editedArtifactData"] = _replaced(artifact, form)
    return said


def _extra_schema(schema: JsonObject) -> JsonObject:
    """What a gate's own schema asks for beyond the protocol's members."""
    members = {key: each for key, each in members_of(schema).items() if key not in _OWN}
    return {**schema, "properties": members} if members else {}


def _needed(text: str, what: str) -> str:
    if not text:
        raise Refused(f"{_REASON.path}: say {what}", field=_REASON.path)
    return text


def _replacement(member: str, current: Json) -> Field:
    """The field for what is to stand instead; a text is edited as text, all else as JSON."""
    is_text = isinstance(current, str)
    return Field(
        name="edited",
        path=f"{VALUE}.{member}",
        title="Your version" if is_text else "Your version, as JSON",
        kind="long" if is_text else "json",
        value="" if isinstance(current, Unset) else written(current, "long" if is_text else "json"),
    )


def _replaced(field: Field, form: Form) -> Json:
    value = read_field(field, form)
    if isinstance(value, Unset):
        raise Refused(f"{field.path}: say what is to stand instead", field=field.path)
    return value


def _governance(item: InboxItem) -> Offer:
    field = replace(_REASON, path=f"{VALUE}.reason", title="Reason")

    def read(name: str, form: Form) -> Json:
        reason = form.get("reason")
        return {"decision": name} | ({"reason": reason} if reason else {})

    return Offer(choices=_choices(item, "granted", "rejected"), fields=[field], read=read)


def _clarification(item: InboxItem) -> Offer:
    asked = [object_of(question) for question in list_of(item.data.get("questions"))]
    forms = [_question_fields(question) for question in asked]

    def read(name: str, form: Form) -> Json:
        answers: JsonObject = {}
        for question, fields in zip(asked, forms, strict=True):
            value = value_of(fields, form, _question_schema(question))
            if not isinstance(value, Unset):
                answers[str(question["id"])] = value
        return {"answers": answers}

    every = [field for fields in forms for field in fields]
    return Offer(choices=_choices(item, "answers"), fields=every, read=read)


def _question_schema(question: JsonObject) -> JsonObject:
    """What an answer must be; a question that does not say takes a text."""
    return object_of(question.get("schema")) or {"type": "string", "maxLength": 4000}


def _question_fields(question: JsonObject) -> list[Field]:
    schema, name = _question_schema(question), str(question["id"])
    path, text = f"{VALUE}.answers.{name}", str(question["question"])
    fields = fields_of(schema, f"answer.{name}", path, text)
    if members_of(schema):
        return [replace(field, title=f"{text} {field.title}") for field in fields]
    return [replace(fields[0], title=text)]


def _low_confidence(item: InboxItem) -> Offer:
    decision = _replacement("decision", item.data.get("decision", UNSET))

    def read(name: str, form: Form) -> Json:
        if name == "decision":
            return {"decision": _replaced(decision, form)}
        reason = form.get("reason")
        return {"action": name} | ({"feedback": reason} if reason else {})

    choices = [
        replace(choice, title="Ratify") if choice.name == "accept" else choice
        for choice in _choices(item, "accept", "reject")
    ]
    return Offer(
        choices=choices,
        fields=[replace(_REASON, title="Reason")],
        edit=next(iter(_choices(item, "decision")), None),
        edited=[decision],
        read=read,
    )


def _conversation(item: InboxItem) -> Offer:
    schema = object_of(item.data.get("outcomeSchema")) or {"type": "string", "maxLength": 4000}
    fields = fields_of(schema, "turn", f"{VALUE}.turn.content", "Your turn")

    def read(name: str, form: Form) -> Json:
        said = value_of(fields, form, schema)
        turn: JsonObject = {"turn": {"content": said}} if said not in (UNSET, {}) else {}
        return {"operation": name} | turn

    return Offer(choices=_choices(item, "exchange", "close"), fields=fields, read=read)


# Short answers that a wait of the workflow's own may take, if its schema does.
_SHORT: Final[dict[str, tuple[Json, ...]]] = {
    "accept": ({"action": "accept"}, "accept"),
    "reject": ({"action": "reject"}, "reject"),
}


def _custom(item: InboxItem) -> Offer:
    """A wait of a kind of its own: whatever its schema takes; without one, any JSON."""
    schema = _schema(item)
    short = _short_answers(schema)
    fields = fields_of(schema, "value", VALUE, "Your answer", is_required=not short)

    def read(name: str, form: Form) -> Json:
        if name in short:
            return short[name]
        value = value_of(fields, form, schema)
        if isinstance(value, Unset):
            raise Refused(f"{VALUE}: say what the answer is", field=VALUE)
        return value

    told = _SHORT_EFFECTS | item.answers
    given = [replace(CHOICES[name], effect=told[name]) for name in short]
    values = _choices(item, "value")
    if short:
        values = [replace(each, title="Answer this instead", key="e", tone="") for each in values]
    return Offer(choices=[*given, *values], fields=fields, read=read)


_SHORT_EFFECTS: Final = {
    "accept": "The run goes on with your yes.",
    "reject": "The run goes on with your no.",
}


def _short_answers(schema: JsonObject) -> dict[str, Json]:
    if not schema or members_of(schema):
        return {}
    offered = UserSchema(schema)
    found = {
        name: next((value for value in values if offered.fits_at_once(value)), UNSET)
        for name, values in _SHORT.items()
    }
    return {name: value for name, value in found.items() if not isinstance(value, Unset)}


_OFFERS: Final[dict[str, Callable[[InboxItem], Offer]]] = {
    "approval": _approval,
    "clarification": _clarification,
    "low-confidence": _low_confidence,
    "conversation.exchange": _conversation,
}


def quick_value(item: InboxItem, name: str, reason: str) -> Json:
    """The value of a yes or a no with a reason; unset where the wait takes none."""
    offer = offer_of(item)
    meant = {"accept": ("accept", "granted"), "reject": ("reject", "rejected")}[name]
    fitting = [] if offer is None else [each for each in offer.names if each in meant]
    if offer is None or not fitting:
        return UNSET
    return offer.read(fitting[0], Form({"reason": reason}))
