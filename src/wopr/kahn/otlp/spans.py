"""OTLP spans: read from both encodings, and reduced to the facts that are stored.

Prompts, responses, explanations and error messages are not stored. Arguments and results of tools
are stored, redacted, only if the operator enables content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec

from wopr.kahn.bridge.facts import cut
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused

SpanKind: TypeAlias = Literal["agent", "workflow", "chat", "tool", "other"]

OPERATION: Final = "gen_ai.operation.name"
KINDS: Final[dict[str, SpanKind]] = {
    "invoke_agent": "agent",
    "invoke_workflow": "workflow",
    "chat": "chat",
    "generate_content": "chat",
    "text_completion": "chat",
    "execute_tool": "tool",
}
EVALUATION: Final = "gen_ai.evaluation.result"
_AGENT_NAMES: Final = ("gen_ai.agent.id", "gen_ai.agent.name")
_MODELS: Final = ("gen_ai.response.model", "gen_ai.request.model")
_PROVIDERS: Final = ("gen_ai.provider.name", "gen_ai.system")
_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
_RESULT: Final = "gen_ai.tool.call.result"
# The attributes that are read.
READ_ATTRIBUTES: Final = frozenset(
    {
        OPERATION,
        *_AGENT_NAMES,
        *_MODELS,
        *_PROVIDERS,
        "gen_ai.conversation.id",
        "gen_ai.workflow.name",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.response.finish_reasons",
        "gen_ai.evaluation.name",
        "gen_ai.evaluation.score.label",
        "gen_ai.evaluation.score.value",
        _ARGUMENTS,
        _RESULT,
        "error.type",
        "openwop.run_id",
        "service.name",
    }
)
# Longer names are cut.
MAX_NAME_LENGTH: Final = 256
MAX_LISTED: Final = 16
_HEX: Final = frozenset("0123456789abcdef")
# The largest integer that every store can store. As a time in nanoseconds it is in the year 2262.
_MAX_INTEGER: Final = 2**63 - 1


class UnusableSpan(ValueError):
    """A GenAI span without valid ids or times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSpan:
    """A span of an export with the attributes that are read. Ids are in lower-case hex."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    start: int = 0
    end: int = 0
    has_failed: bool = False
    attributes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    # The attributes of its evaluation events.
    evaluations: Sequence[Mapping[str, Json]] = ()

    @property
    def kind(self) -> SpanKind:
        """Return the kind of the span; `other` if it is not about agents."""
        return KINDS.get(str(self.attributes.get(OPERATION)), "other")

    @property
    def has_valid_ids(self) -> bool:
        """Return whether the ids of the trace and the span are valid."""
        return _is_id(self.trace_id, 32) and _is_id(self.span_id, 16)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An evaluation of an agent's work."""

    name: str
    label: str = ""
    score: float | None = None


class SpanFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A span in its stored form. A span that is not about agents has only its ids.

    `agent` is the agent's id, or its name, or the name of its service. Times are in nanoseconds.
    """

    span_id: str
    parent_id: str = ""
    kind: SpanKind = "other"
    start: int = 0
    end: int = 0
    agent: str = ""
    name: str = ""
    service: str = ""
    provider: str = ""
    model: str = ""
    tool: str = ""
    call_id: str = ""
    conversation: str = ""
    workflow: str = ""
    # The id of the run if an OpenWOP host exported the span.
    run_id: str = ""
    error: str = ""
    finish: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    arguments: str = ""
    result: str = ""


def facts_of(
    span: WireSpan, *, keeps_content: bool = False, redact: Callable[[str], str] = str
) -> SpanFacts:
    """Reduce a span to its stored form. Raises `UnusableSpan` for an invalid span about agents.

    `redact` removes secrets from a text.
    """
    kind = span.kind
    if kind == "other":
        return SpanFacts(span_id=span.span_id, parent_id=_parent(span))
    _require_valid(span)
    read = _AttributeReader(span.attributes, redact)
    service = read.name("service.name")
    judged = span.evaluations[:MAX_LISTED]
    return SpanFacts(
        span_id=span.span_id,
        parent_id=_parent(span),
        kind=kind,
        start=span.start,
        # A clock may be set back during a span.
        end=max(span.start, span.end),
        agent=read.name(*_AGENT_NAMES) or service or "unknown-service",
        name=read.name("gen_ai.agent.name"),
        service=service,
        provider=read.name(*_PROVIDERS),
        model=read.name(*_MODELS),
        tool=read.name("gen_ai.tool.name"),
        call_id=read.name("gen_ai.tool.call.id"),
        conversation=read.name("gen_ai.conversation.id"),
        workflow=read.name("gen_ai.workflow.name"),
        run_id=read.name("openwop.run_id"),
        error=read.name("error.type") or ("error" if span.has_failed else ""),
        finish=read.names("gen_ai.response.finish_reasons"),
        input_tokens=read.count("gen_ai.usage.input_tokens"),
        output_tokens=read.count("gen_ai.usage.output_tokens"),
        evaluations=tuple(_evaluation(_AttributeReader(each, redact)) for each in judged),
        arguments=read.summary(_ARGUMENTS) if keeps_content else "",
        result=read.summary(_RESULT) if keeps_content else "",
    )


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and _HEX.issuperset(text) and bool(text.strip("0"))


def _parent(span: WireSpan) -> str:
    """Return the id of the parent, or an empty text if it is missing, zero or invalid."""
    return span.parent_id if _is_id(span.parent_id, 16) else ""


def _require_valid(span: WireSpan) -> None:
    if not span.has_valid_ids:
        raise UnusableSpan("trace_id must have 16 bytes and span_id 8 bytes, not all of them zero")
    if not 0 < span.start <= _MAX_INTEGER or not 0 <= span.end <= _MAX_INTEGER:
        raise UnusableSpan("start_time_unix_nano and end_time_unix_nano must be valid times")


def _evaluation(read: _AttributeReader) -> Evaluation:
    return Evaluation(
        name=read.name("gen_ai.evaluation.name") or "unnamed",
        label=read.name("gen_ai.evaluation.score.label"),
        score=read.number("gen_ai.evaluation.score.value"),
    )


class _AttributeReader:
    """Reads attributes of any type."""

    def __init__(self, attributes: Mapping[str, Json], redact: Callable[[str], str]) -> None:
        self._attributes = attributes
        self._redact = redact

    def name(self, *keys: str) -> str:
        """Return the first of these attributes that is a text, or an empty text."""
        found = (self._attributes.get(key) for key in keys)
        return next((self._text(each) for each in found if each and isinstance(each, str)), "")

    def names(self, key: str) -> tuple[str, ...]:
        """Return all texts of a list."""
        listed: object = self._attributes.get(key)
        values = cast("list[object]", listed) if isinstance(listed, list) else [listed]
        return tuple(self._text(each) for each in values[:MAX_LISTED] if isinstance(each, str))

    def count(self, key: str) -> int:
        """Return an integer of at least 0; 0 for other values."""
        value = self._attributes.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            return 0
        return min(max(value, 0), _MAX_INTEGER)

    def number(self, key: str) -> float | None:
        """Return a number that JSON allows, or None."""
        value = self._attributes.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        is_valid = abs(value) <= _MAX_INTEGER if isinstance(value, int) else math.isfinite(value)
        return float(value) if is_valid else None

    def summary(self, key: str) -> str:
        """Return a text, cut to the length of a summary."""
        value = self._attributes.get(key)
        return cut(self._redact(value)) if isinstance(value, str) else ""

    def _text(self, value: str) -> str:
        return self._redact(value)[:MAX_NAME_LENGTH]


Encoding: TypeAlias = Literal["protobuf", "json"]

_FAILED: Final = 2


def read_export(body: bytes, encoding: Encoding) -> list[WireSpan]:
    """Read all spans of an export. Raises `Refused` if the body is not a valid export."""
    return _read_json(body) if encoding == "json" else _read_protobuf(body)


# Protocol buffers: the generated classes have no types for nested messages.


def _read_protobuf(body: bytes) -> list[WireSpan]:
    # Imported here, because the library is slow to import and seldom needed.
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
    return {pair.key: _value(pair.value) for pair in pairs if pair.key in READ_ATTRIBUTES}


def _value(value: Any) -> Json:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values if not each.HasField(kind)]
    is_plain = kind in ("string_value", "int_value", "double_value", "bool_value")
    return getattr(value, kind) if is_plain else None


# JSON: ids are in hex and not in Base64, so the library for protocol buffers cannot read it.


_WholeNumber = int | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}$")] | None


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the JSON messages: unknown members are ignored, and `null` means absent."""


class _Array(_Message, frozen=True, kw_only=True):
    values: list[_Value] | None = None


class _Value(_Message, frozen=True, kw_only=True):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,19}$")] | None = None
    # `NaN` and infinities are texts, and are ignored.
    double_value: float | str | None = None
    array_value: _Array | None = None

    def plain(self) -> Json:
        """Return the value as plain JSON; None for types that are not read."""
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
    start_time_unix_nano: _WholeNumber = None
    end_time_unix_nano: _WholeNumber = None
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
        if pair.key in READ_ATTRIBUTES and pair.value is not None
    }
