"""What a fleet keeps of an OpenTelemetry span: its place in the trace, and GenAI facts without content.

Prompts, answers, explanations and the messages of errors are left where they are. What a tool was
given and gave back is kept only where the operator wants content, and redacted then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

import msgspec

from wopr.fleet.bridge_facts import cut
from wopr.protocol.documents import Json

Kind: TypeAlias = Literal["agent", "workflow", "chat", "tool", "other"]

OPERATION: Final = "gen_ai.operation.name"
KINDS: Final[dict[str, Kind]] = {
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
# Attributes that are read; a decoder need not look at others.
WANTED: Final = frozenset(
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
# Names are short; what is longer is no name.
LONGEST_NAME: Final = 256
MOST_LISTED: Final = 16
_HEX: Final = frozenset("0123456789abcdef")
# What every store can hold as a whole number. As nanoseconds it is in the year 2262.
_MOST: Final = 2**63 - 1


class UnusableSpan(ValueError):
    """A GenAI span that cannot be placed in any trace or time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSpan:
    """A span as it came, of all its attributes those that are read; ids are in lower-case hex."""

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
    def kind(self) -> Kind:
        """What the span is about; whatever is not about agents is `other`."""
        return KINDS.get(str(self.attributes.get(OPERATION)), "other")

    @property
    def has_place(self) -> bool:
        """Whether its ids are ids."""
        return _is_id(self.trace_id, 32) and _is_id(self.span_id, 16)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How somebody judged what an agent did."""

    name: str
    label: str = ""
    score: float | None = None


class SpanFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A span as it is kept; one that is not about agents only knows its parent.

    `agent` is the agent's id, or its name, or the name of its service. Times are nanoseconds.
    """

    span_id: str
    parent_id: str = ""
    kind: Kind = "other"
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
    # The run of an OpenWOP host that the span tells of.
    run_id: str = ""
    error: str = ""
    finish: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    arguments: str = ""
    result: str = ""


def facts_of(
    span: WireSpan, *, keeps_content: bool = False, clean: Callable[[str], str] = str
) -> SpanFacts:
    """Reduce a span to what is kept. Raises `UnusableSpan` for one about agents without a place.

    `clean` takes secrets out of every text.
    """
    kind = span.kind
    if kind == "other":
        return SpanFacts(span_id=span.span_id, parent_id=_parent(span))
    _require_place(span)
    read = _Reading(span.attributes, clean)
    service = read.name("service.name")
    judged = span.evaluations[:MOST_LISTED]
    return SpanFacts(
        span_id=span.span_id,
        parent_id=_parent(span),
        kind=kind,
        start=span.start,
        # A clock may be set back while a span lasts.
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
        evaluations=tuple(_evaluation(_Reading(each, clean)) for each in judged),
        arguments=read.summary(_ARGUMENTS) if keeps_content else "",
        result=read.summary(_RESULT) if keeps_content else "",
    )


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and _HEX.issuperset(text) and bool(text.strip("0"))


def _parent(span: WireSpan) -> str:
    """The id of the parent; zeros stand for none, as nothing does and what is no id."""
    return span.parent_id if _is_id(span.parent_id, 16) else ""


def _require_place(span: WireSpan) -> None:
    if not span.has_place:
        raise UnusableSpan("trace_id must have 16 bytes and span_id 8, not all of them zero")
    if not 0 < span.start <= _MOST or not 0 <= span.end <= _MOST:
        raise UnusableSpan("start_time_unix_nano and end_time_unix_nano must be real instants")


def _evaluation(read: _Reading) -> Evaluation:
    return Evaluation(
        name=read.name("gen_ai.evaluation.name") or "unnamed",
        label=read.name("gen_ai.evaluation.score.label"),
        score=read.number("gen_ai.evaluation.score.value"),
    )


class _Reading:
    """Reads attributes, whatever their senders put into them."""

    def __init__(self, attributes: Mapping[str, Json], clean: Callable[[str], str]) -> None:
        self._attributes = attributes
        self._clean = clean

    def name(self, *keys: str) -> str:
        """The first of these attributes that is a text, or nothing."""
        found = (self._attributes.get(key) for key in keys)
        return next((self._text(each) for each in found if each and isinstance(each, str)), "")

    def names(self, key: str) -> tuple[str, ...]:
        """All texts of a list."""
        listed: object = self._attributes.get(key)
        values = cast("list[object]", listed) if isinstance(listed, list) else [listed]
        return tuple(self._text(each) for each in values[:MOST_LISTED] if isinstance(each, str))

    def count(self, key: str) -> int:
        """A whole number that is not negative; nothing else counts."""
        value = self._attributes.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            return 0
        return min(max(value, 0), _MOST)

    def number(self, key: str) -> float | None:
        """A number that JSON can hold."""
        value = self._attributes.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        is_held = abs(value) <= _MOST if isinstance(value, int) else math.isfinite(value)
        return float(value) if is_held else None

    def summary(self, key: str) -> str:
        """A text of any length, cut."""
        value = self._attributes.get(key)
        return cut(self._clean(value)) if isinstance(value, str) else ""

    def _text(self, value: str) -> str:
        return self._clean(value)[:LONGEST_NAME]
