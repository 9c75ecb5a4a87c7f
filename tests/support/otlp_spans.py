"""OTLP exports as JSON and as protocol buffers."""

from __future__ import annotations

import base64
import json

from google.protobuf.json_format import Parse  # type: ignore[import-untyped]  # it has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kahn.spans import DAWN, SECOND, TRACE, span_id
from wopr.protocol.documents import Json, JsonObject

_IDS = ("traceId", "spanId", "parentSpanId")


def pairs(attributes: JsonObject) -> list[JsonObject]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Json) -> JsonObject:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}


def otlp_span(
    number: int, parent: int, attributes: JsonObject, trace_id: str = TRACE, **changed: Json
) -> JsonObject:
    """Return a span of one second."""
    whole: JsonObject = {
        "traceId": trace_id,
        "spanId": span_id(number),
        "parentSpanId": span_id(parent),
        "name": "a span",
        "kind": 1,
        "startTimeUnixNano": str(DAWN + SECOND),
        "endTimeUnixNano": str(DAWN + 2 * SECOND),
        "attributes": pairs(attributes),
    }
    return whole | changed


def export(*spans: JsonObject, service: str = "shop") -> JsonObject:
    """Return an export with spans of one service."""
    resource = {"attributes": pairs({"service.name": service})}
    scopes = [{"scope": {"name": "tests"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def as_protobuf(document: JsonObject) -> bytes:
    """Return the same export as protocol buffers, where ids are bytes instead of Base64."""
    copy = json.loads(json.dumps(document))
    for resource in copy["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS:
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message: bytes = Parse(json.dumps(copy), ExportTraceServiceRequest()).SerializeToString()
    return message
