"""Interrupts as MCP elicitation: forms for interrupts, and rounds of questions within a call.

A form has only plain fields. An interrupt that needs other fields is not elicited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import msgspec
from mcp.server import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.interrupts import ClarificationData, InboxItem, is_vendor_kind
from wopr.runs.interrupts.approvals import governance_of

Context = ServerRequestContext[Any, Any]
CallOnce = Callable[
    [InputResponses | None, str | None], Awaitable[CallToolResult | InputRequiredResult]
]
# The properties of a form, the names of its required fields, and the function `read`.
_Fields = tuple[JsonObject, list[str], Callable[[Mapping[str, Json]], Json]]

MAX_SHOWN_LENGTH: Final = 4000
_CANCELLED: Final = ElicitResult(action="cancel")
_TEXT: Final[JsonObject] = {"type": "string"}
_PLAIN_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
# Schema keywords that a client's form can show.
_FORM_KEYWORDS: Final = (
    "type title description enum minimum maximum minLength maxLength format default".split()
)
# An edited version is a document. A form of plain fields cannot contain it.
_NOT_IN_A_FORM: Final = frozenset({"edit-accept"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ElicitationForm:
    """The form of an interrupt. `read` converts its content to a resume value."""

    message: str
    schema: JsonObject
    read: Callable[[Mapping[str, Json]], Json]


def form_of(item: InboxItem) -> ElicitationForm | None:
    """Create the form of an interrupt; None if a form is not possible."""
    fields = _fields(item)
    if fields is None:
        return None
    properties, required, read = fields
    schema: JsonObject = {"type": "object", "properties": properties, "required": required}
    return ElicitationForm(message=_message(item), schema=schema, read=read)


def _fields(item: InboxItem) -> _Fields | None:
    if governance_of(item.data) is not None:
        return _choice_fields("decision", item.answers, "reason", _read_governance)
    match item.kind:
        case "approval":
            return _choice_fields("action", item.answers, "reason", _read_approval)
        case "low-confidence":
            options = {name: text for name, text in item.answers.items() if name != "decision"}
            return _choice_fields("action", options, "reason", _read_approval)
        case "clarification":
            return _question_fields(item)
        case "conversation.exchange":
            return _turn_fields(item)
        case "external-event":
            return None
        case kind if is_vendor_kind(kind):
            options = {name: text for name, text in item.answers.items() if name != "value"}
            return _choice_fields("action", options, "reason", _read_approval)
        case _:
            return _custom_fields(item)


def _choice_fields(
    member: str,
    answers: Mapping[str, str],
    reason: str,
    read: Callable[[Mapping[str, Json]], Json],
) -> _Fields | None:
    options = {name: text for name, text in answers.items() if name not in _NOT_IN_A_FORM}
    if not options:
        return None
    effects = " ".join(f"{name}: {text}" for name, text in options.items())
    properties: JsonObject = {
        member: {"type": "string", "enum": list(options), "description": effects},
        reason: _TEXT | {"description": "A reason, feedback, or a question."},
    }
    return properties, [member], read


def _read_approval(content: Mapping[str, Json]) -> Json:
    action, reason = content.get("action"), content.get("reason")
    if action == "refine":
        return {"action": action, "refineFeedback": {"scope": "whole", "text": reason or ""}}
    if action == "ask":
        return {"action": action, "question": reason or ""}
    return {"action": action} | ({"feedback": reason} if reason else {})


def _read_governance(content: Mapping[str, Json]) -> Json:
    reason = content.get("reason")
    return {"decision": content.get("decision")} | ({"reason": reason} if reason else {})


def _question_fields(item: InboxItem) -> _Fields | None:
    questions = msgspec.convert(item.data, ClarificationData).questions
    properties: JsonObject = {}
    for question in questions:
        schema = _TEXT if isinstance(question.schema, Unset) else _plain_schema(question.schema)
        if schema is None:
            return None
        properties[question.id] = schema | {"title": question.question}
    return properties, list(properties), lambda content: {"answers": dict(content)}


def _turn_fields(item: InboxItem) -> _Fields | None:
    if "outcomeSchema" in item.data:
        return None
    choice: JsonObject = {"type": "string", "enum": list(item.answers)}

    def read(content: Mapping[str, Json]) -> Json:
        turn = {"turn": {"content": content["content"]}} if content.get("content") else {}
        return {"operation": content.get("operation")} | turn

    return {"operation": choice, "content": _TEXT}, ["operation"], read


def _custom_fields(item: InboxItem) -> _Fields | None:
    """Return the fields of a custom interrupt, if its schema is an object of plain values."""
    schema = {} if isinstance(item.resume_schema, Unset) else item.resume_schema
    members: Json = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(members, dict) or not members:
        return None
    properties: JsonObject = {}
    for name, member in cast("dict[str, JsonObject]", members).items():
        plain = _plain_schema(member)
        if plain is None:
            return None
        properties[name] = plain
    required = [str(name) for name in schema.get("required", [])]
    return properties, required, dict


def _plain_schema(schema: JsonObject) -> JsonObject | None:
    """Return the part of a field's schema for the form; None if the field is not a plain value."""
    if schema.get("type") not in _PLAIN_TYPES:
        return None
    return {name: schema[name] for name in _FORM_KEYWORDS if name in schema}


def _message(item: InboxItem) -> str:
    """Return the text of the form: the question, its context and its source."""
    about = item.data.get("description"), item.data.get("artifactData", item.data.get("decision"))
    parts = [item.question, *(_shorten(each) for each in about if each not in (None, ""))]
    parts.append(f"Asked by {item.asked_by.node_name} of {item.workflow_id}, run {item.run_id}.")
    return "\n\n".join(parts)


def _shorten(value: Json) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"


def can_elicit(ctx: Context) -> bool:
    """Return whether the client can show a form to a person now."""
    declared = ctx.session.client_capabilities
    if declared is None or declared.elicitation is None:
        return False
    # In old protocol versions the capability has no members and means forms.
    has_form = declared.elicitation.form is not None or declared.elicitation.url is None
    return has_form and (_elicits_by_result(ctx) or ctx.session.can_send_request)


async def call_in_rounds(
    ctx: Context, params: CallToolRequestParams, call_once: CallOnce, seconds: float = 0
) -> CallToolResult | InputRequiredResult:
    """Repeat a call with the person's answers until it has a result.

    A client of a modern version gets the question as a result and calls again with the answer. An
    older client is asked while its call waits. If that is not possible, or no answer comes within
    `seconds` (0 is no limit), the question counts as cancelled.
    """
    result = await call_once(params.input_responses, params.request_state)
    while isinstance(result, InputRequiredResult):
        if _elicits_by_result(ctx) and can_elicit(ctx):
            return result
        requests = result.input_requests or {}
        answers: InputResponses = {
            key: await _elicit(ctx, request, seconds) for key, request in requests.items()
        }
        result = await call_once(answers, result.request_state)
    return result


async def _elicit(ctx: Context, request: InputRequest, seconds: float) -> ElicitResult:
    form = request.params if isinstance(request, ElicitRequest) else None
    if not isinstance(form, ElicitRequestFormParams) or not can_elicit(ctx):
        return _CANCELLED
    with anyio.move_on_after(seconds or None):
        return await ctx.session.elicit_form(
            form.message, form.requested_schema, related_request_id=ctx.request_id
        )
    return _CANCELLED


def _elicits_by_result(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
