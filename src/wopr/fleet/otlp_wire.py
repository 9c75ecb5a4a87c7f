"""OTLP's export of traces, read from either of its two encodings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from wopr.fleet.otlp_facts import EVALUATION, WANTED, WireSpan
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused

Encoding: TypeAlias = Literal["protobuf", "json"]

_FAILED: Final = 2


def read_export(body: bytes, encoding: Encoding) -> list[WireSpan]:
    """Read all spans of an export. Raises `Refused` for a body that is none."""
    return _read_json(body) if encoding == "json" else _read_protobuf(body)


# Protocol buffers: the generated classes have no types where they hold other messages.


def _read_protobuf(body: bytes) -> list[WireSpan]:
    # Imported when such an export comes: the library is slow to import.
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        request: Any = ExportTraceServiceRequest.FromString(body)
    except DecodeError as fault:
        message = "the body is not an ExportTraceServiceRequest"
        raise Refused(message, field="body") from fault
    return [
        _from_message(span, service)
        for resource in request.resource_spans
        for service in [_attributes(resource.resource.attributes)]
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _from_message(span: Any, service: dict[str, Json]) -> WireSpan:
    return WireSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        has_failed=span.status.code == _FAILED,
        attributes=service | _attributes(span.attributes),
        evaluations=[
            _attributes(event.attributes) for event in span.events if event.name == EVALUATION
        ],
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Json]:
    return {pair.key: _value(pair.value) for pair in pairs if pair.key in WANTED}


def _value(value: Any) -> Json:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values if not each.HasField(kind)]
    is_plain = kind in ("string_value", "int_value", "double_value", "bool_value")
    return getattr(value, kind) if is_plain else None


# JSON: ids are hex there and no Base64, so it is not what the library for messages reads.


_Whole = int | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}$")] | None


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is unknown passes, and `null` is a field that is not there."""


class _Array(_Message, frozen=True, kw_only=True):
    values: list[_Value] | None = None


class _Value(_Message, frozen=True, kw_only=True):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,19}$")] | None = None
    # `NaN` and the infinities are words here; none of them says anything.
    double_value: float | str | None = None
    array_value: _Array | None = None

    def plain(self) -> Json:
        """The value as JSON would have it; None for one that is not read."""
        if self.array_value is not None:
            return [each.plain() for each in self.array_value.values or () if not each.array_value]
        if self.int_value is not None:
            return int(self.int_value)
        if isinstance(self.double_value, float):
            return self.double_value
        return self.bool_value if self.string_value is None else self.string_value


class _Pair(_Message, frozen=True, kw_only=True):
    key: str
    value: _Value | None = None


class _Event(_Message, frozen=True, kw_only=True):
    name: str | None = None
    attributes: list[_Pair] | None = None


class _Status(_Message, frozen=True, kw_only=True):
    code: int | str | None = None


class _Span(_Message, frozen=True, kw_only=True):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    start_time_unix_nano: _Whole = None
    end_time_unix_nano: _Whole = None
    attributes: list[_Pair] | None = None
    events: list[_Event] | None = None
    status: _Status | None = None


class _Scope(_Message, frozen=True, kw_only=True):
    spans: list[_Span] | None = None


class _Resource(_Message, frozen=True, kw_only=True):
    attributes: list[_Pair] | None = None


class _ResourceSpans(_Message, frozen=True, kw_only=True):
    resource: _Resource | None = None
    scope_spans: list[_Scope] | None = None


class _Export(_Message, frozen=True, kw_only=True):
    resource_spans: list[_ResourceSpans] | None = None


_EXPORT: Final = msgspec.json.Decoder(_Export)


def _read_json(body: bytes) -> list[WireSpan]:
    try:
        export = _EXPORT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        message = f"the body is not an ExportTraceServiceRequest: {fault}"
        raise Refused(message, field="body") from fault
    return [span for resource in export.resource_spans or () for span in _spans_of(resource)]


def _spans_of(resource: _ResourceSpans) -> Iterator[WireSpan]:
    service = _plain(resource.resource.attributes if resource.resource else None)
    for scope in resource.scope_spans or ():
        for span in scope.spans or ():
            yield WireSpan(
                trace_id=(span.trace_id or "").lower(),
                span_id=(span.span_id or "").lower(),
                parent_id=(span.parent_span_id or "").lower(),
                start=int(span.start_time_unix_nano or 0),
                end=int(span.end_time_unix_nano or 0),
                has_failed=span.status is not None and span.status.code == _FAILED,
                attributes=service | _plain(span.attributes),
                evaluations=[
                    _plain(each.attributes) for each in span.events or () if each.name == EVALUATION
                ],
            )


def _plain(pairs: list[_Pair] | None) -> dict[str, Json]:
    return {
        pair.key: pair.value.plain()
        for pair in pairs or ()
        if pair.key in WANTED and pair.value is not None
    }
