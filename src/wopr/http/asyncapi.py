"""The AsyncAPI 3 document of the event streams, generated from the event types."""

from __future__ import annotations

from typing import Final

from wopr.feedback.annotations import ANNOTATED_EVENT
from wopr.http.routes.events import MAX_BUFFER_MS
from wopr.kahn.observed.events import LINE_EVENT_TYPES
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import EVENT_TYPES, RunEvent
from wopr.protocol.json_schema.export import limit_signal, payload_schemas
from wopr.protocol.resources.annotations import Annotation
from wopr.protocol.runs import RunSnapshot
from wopr.protocol.streams import MODES, is_update
from wopr.version import __version__

ADDRESS: Final = "/v1/runs/{runId}/events"
SCHEMA_REF: Final = "#/components/schemas/{name}"
SNAPSHOT: Final = "state.snapshot"
CHUNK: Final = "ai.message.chunk"
BATCH: Final = "batch"
VENDOR: Final = "vendor.event"
_MODES: Final = {
    "updates": "The default: events that change what a reader shows.",
    "values": "A snapshot of the run after each change.",
    "messages": "Chunks of a model's output.",
    "debug": "Every event of the log.",
}
# Redaction may replace values, so the payload has a looser schema than the pushed line.
_LINE: Final = {
    "type": "object",
    "description": (
        "The fields of the KAHN line that was pushed, after redaction. The schemas of lines are "
        "/v1/schemas/kahn-agent-event.json and /v1/schemas/kahn-ci-event.json."
    ),
}
_BUFFER: Final = {"type": "integer", "minimum": 0, "maximum": MAX_BUFFER_MS}


def asyncapi_document(*, feedback: bool) -> JsonObject:
    """Describe the stream of each mode, with annotations if `feedback` is true."""
    messages, schemas = _messages()
    names_by_mode = {mode: _message_names(mode, feedback=feedback) for mode in MODES}
    used = {name for names in names_by_mode.values() for name in names}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "WOPR event streams",
            "version": __version__,
            "description": (
                "Server-sent events of a run. A frame's event name is the name of a message, and "
                "its data is the message. A stream of several modes, such as "
                "streamMode=updates,messages, has the messages of each; values cannot be combined."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {mode: _channel(mode, names) for mode, names in names_by_mode.items()},
        "operations": {f"stream.{mode}": _operation(mode, names_by_mode[mode]) for mode in MODES},
        "components": {
            "messages": {name: messages[name] for name in sorted(used)},
            "schemas": schemas,
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
        },
    }


def _message_names(mode: str, *, feedback: bool) -> list[str]:
    """Return the names of the messages of a mode."""
    match mode:
        case "values":
            names = [SNAPSHOT]
        case "messages":
            names = [CHUNK]
        case "updates":
            names = [each for each in sorted(EVENT_TYPES) if is_update(each)]
        case _:
            names = [*sorted(EVENT_TYPES), *LINE_EVENT_TYPES, VENDOR]
    has_annotations = feedback and mode in ("updates", "debug")
    return [*names, *([ANNOTATED_EVENT] if has_annotations else []), BATCH]


def _channel(mode: str, names: list[str]) -> JsonObject:
    return {
        "address": ADDRESS,
        "title": f"streamMode={mode}",
        "description": _MODES[mode],
        "parameters": {"runId": {"description": "The id of the run."}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
    }


def _operation(mode: str, names: list[str]) -> JsonObject:
    query = {
        "type": "object",
        "properties": {"streamMode": {"type": "string", "const": mode}, "bufferMs": _BUFFER},
    }
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{mode}"},
        "summary": f"Stream a run's events in the mode {mode}",
        "security": [{"$ref": "#/components/securitySchemes/apiKey"}],
        "messages": [{"$ref": f"#/channels/{mode}/messages/{name}"} for name in names],
        "bindings": {"http": {"method": "GET", "query": query, "bindingVersion": "0.3.0"}},
    }


def _messages() -> tuple[dict[str, JsonObject], JsonObject]:
    """Return all messages by name, and the schemas that they refer to."""
    documents = (RunEvent, Annotation, RunSnapshot)
    payloads, (event, annotation, snapshot), schemas = payload_schemas(SCHEMA_REF, documents)
    limit_signal(schemas["Signal"])
    messages = {
        name: _message(name, _event(event, name, payload), "an event of the log")
        for name, payload in payloads.items()
    }
    for name in LINE_EVENT_TYPES:
        messages[name] = _message(name, _event(event, name, _LINE), "a line of an observed run")
    messages[VENDOR] = _message(VENDOR, event, "an event of a type that a vendor defines")
    messages[SNAPSHOT] = _message(
        SNAPSHOT, _event(event, SNAPSHOT, snapshot), "the current snapshot of the run"
    )
    messages[CHUNK] = _message(CHUNK, payloads["output.chunk"], "a piece of a model's text")
    messages[BATCH] = _message(
        BATCH, {"type": "array", "minItems": 1, "items": event}, "events that bufferMs collected"
    )
    # The frame has no id: Last-Event-ID keeps pointing at the log.
    annotated = _message(ANNOTATED_EVENT, annotation, "an annotation that was just stored")
    messages[ANNOTATED_EVENT] = annotated | {"x-sse": {"event": ANNOTATED_EVENT}}
    return messages, schemas


def _message(name: str, payload: JsonObject, summary: str) -> JsonObject:
    return {
        "name": name,
        "title": name,
        "summary": summary[0].upper() + summary[1:] + ".",
        "payload": payload,
        "x-sse": {"event": name, "id": "sequence"},
    }


def _event(event: JsonObject, name: str, payload: JsonObject) -> JsonObject:
    """Return the schema of an event of one type."""
    return {
        "allOf": [event, {"type": "object", "properties": {"type": {"const": name}}}],
        "properties": {"payload": payload},
    }
