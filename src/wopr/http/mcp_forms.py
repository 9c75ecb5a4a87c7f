"""Interrupts as elicitation: the form that asks a person, and what its content answers.

A form is flat and its fields are plain values. A wait that asks for more than that is not elicited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.interrupts import ClarificationData, is_vendor_kind
from wopr.runtime.entitled import governance_of
from wopr.runtime.inbox import InboxItem

LONGEST_SHOWN: Final = 4000
_TEXT: Final[JsonObject] = {"type": "string"}
_PLAIN: Final = frozenset({"string", "number", "integer", "boolean"})
# What a client's form can show of a field.
_KEPT: Final = (
    "type title description enum minimum maximum minLength maxLength format default".split()
)
# An edited version is a document, which no form of plain fields can hold.
_NOT_IN_A_FORM: Final = frozenset({"edit-accept"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a person is asked, and how the content becomes a resume value."""

    message: str
    schema: JsonObject
    read: Callable[[Mapping[str, Json]], Json]


def form_of(item: InboxItem) -> Form | None:
    """The form of a wait; None for one that a form cannot ask."""
    fields = _fields(item)
    if fields is None:
        return None
    properties, required, read = fields
    schema: JsonObject = {"type": "object", "properties": properties, "required": required}
    return Form(message=_message(item), schema=schema, read=read)


_Fields = tuple[JsonObject, list[str], Callable[[Mapping[str, Json]], Json]]


def _fields(item: InboxItem) -> _Fields | None:
    if governance_of(item.data) is not None:
        return _choice("decision", item.answers, "reason", _governed)
    match item.kind:
        case "approval":
            return _choice("action", item.answers, "reason", _approved)
        case "low-confidence":
            told = {name: text for name, text in item.answers.items() if name != "decision"}
            return _choice("action", told, "reason", _approved)
        case "clarification":
            return _questions(item)
        case "conversation.exchange":
            return _turn(item)
        case "external-event":
            return None
        case kind if is_vendor_kind(kind):
            told = {name: text for name, text in item.answers.items() if name != "value"}
            return _choice("action", told, "reason", _approved)
        case _:
            return _custom(item)


def _choice(
    member: str,
    answers: Mapping[str, str],
    reason: str,
    read: Callable[[Mapping[str, Json]], Json],
) -> _Fields | None:
    told = {name: text for name, text in answers.items() if name not in _NOT_IN_A_FORM}
    if not told:
        return None
    effects = " ".join(f"{name}: {text}" for name, text in told.items())
    properties: JsonObject = {
        member: {"type": "string", "enum": list(told), "description": effects},
        reason: _TEXT | {"description": "A reason, feedback, or a question."},
    }
    return properties, [member], read


def _approved(content: Mapping[str, Json]) -> Json:
    action, reason = content.get("action"), content.get("reason")
    if action == "refine":
        return {"action": action, "refineFeedback": {"scope": "whole", "text": reason or ""}}
    if action == "ask":
        return {"action": action, "question": reason or ""}
    return {"action": action} | ({"feedback": reason} if reason else {})


def _governed(content: Mapping[str, Json]) -> Json:
    reason = content.get("reason")
    return {"decision": content.get("decision")} | ({"reason": reason} if reason else {})


def _questions(item: InboxItem) -> _Fields | None:
    asked = msgspec.convert(item.data, ClarificationData).questions
    properties: JsonObject = {}
    for question in asked:
        schema = _TEXT if isinstance(question.schema, Unset) else _plain(question.schema)
        if schema is None:
            return None
        properties[question.id] = schema | {"title": question.question}
    return properties, list(properties), lambda content: {"answers": dict(content)}


def _turn(item: InboxItem) -> _Fields | None:
    if "outcomeSchema" in item.data:
        return None
    choice: JsonObject = {"type": "string", "enum": list(item.answers)}

    def read(content: Mapping[str, Json]) -> Json:
        turn = {"turn": {"content": content["content"]}} if content.get("content") else {}
        return {"operation": content.get("operation")} | turn

    return {"operation": choice, "content": _TEXT}, ["operation"], read


def _custom(item: InboxItem) -> _Fields | None:
    """A wait of the workflow's own: what its schema asks for, if that is an object of plain values."""
    schema = {} if isinstance(item.resume_schema, Unset) else item.resume_schema
    members: Json = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(members, dict) or not members:
        return None
    properties: JsonObject = {}
    for name, member in cast("dict[str, JsonObject]", members).items():
        plain = _plain(member)
        if plain is None:
            return None
        properties[name] = plain
    required = [str(name) for name in schema.get("required", [])]
    return properties, required, dict


def _plain(schema: JsonObject) -> JsonObject | None:
    """What a form can show of a field's schema; None when the field is no plain value."""
    if schema.get("type") not in _PLAIN:
        return None
    return {name: schema[name] for name in _KEPT if name in schema}


def _message(item: InboxItem) -> str:
    """The question, what it is about, and who asks."""
    about = item.data.get("description"), item.data.get("artifactData", item.data.get("decision"))
    parts = [item.question, *(_shown(each) for each in about if each not in (None, ""))]
    parts.append(f"Asked by {item.asked_by.node_name} of {item.workflow_id}, run {item.run_id}.")
    return "\n\n".join(parts)


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
