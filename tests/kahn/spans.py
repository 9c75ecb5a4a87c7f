"""Spans of agents, as they are received and as they are stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from wopr.kahn.otlp.lines import project_trace
from wopr.kahn.otlp.spans import SpanFacts
from wopr.kahn.otlp.tree import merge_spans
from wopr.protocol.documents import Json, JsonObject

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECOND = 1_000_000_000
# The start of every trace of the tests.
DAWN = 1_800_000_000 * SECOND


def span_id(number: int) -> str:
    return f"{number:016x}" if number else ""


def other(number: int, parent: int = 0) -> SpanFacts:
    """Return a span that is not about agents."""
    return SpanFacts(span_id=span_id(number), parent_id=span_id(parent))


def span(number: int, parent: int, kind: str, start: float, end: float, **facts: Json) -> SpanFacts:
    """Return a span from one second of the trace to another."""
    own: JsonObject = {"agent": "service", "service": "service"} | facts
    return SpanFacts(
        span_id=span_id(number),
        parent_id=span_id(parent),
        kind=kind,  # type: ignore[arg-type]  # the tests name only kinds that there are
        start=DAWN + round(start * SECOND),
        end=DAWN + round(end * SECOND),
        **own,
    )


def agent(
    number: int, parent: int, start: float, end: float, name: str = "lead", **facts: Json
) -> SpanFacts:
    return span(number, parent, "agent", start, end, agent=name, name=name, **facts)


def chat(number: int, parent: int, start: float, end: float, **facts: Json) -> SpanFacts:
    used: JsonObject = {"model": "m-1", "input_tokens": 5, "output_tokens": 7}
    return span(number, parent, "chat", start, end, **(used | facts))


def tool(number: int, parent: int, start: float, end: float, **facts: Json) -> SpanFacts:
    return span(number, parent, "tool", start, end, **({"tool": "search"} | facts))


def conversation() -> list[SpanFacts]:
    """Return a request in which an agent asks, calls a tool, hands off and answers."""
    return [
        other(1),
        agent(2, 1, 0, 20, conversation="talk-7"),
        chat(3, 2, 1, 3, finish=("tool_calls",)),
        tool(4, 2, 3, 5, call_id="call-1"),
        other(9, 2),
        agent(5, 9, 6, 12, "helper"),
        tool(6, 5, 7, 9, tool="fetch", error="timeout"),
        chat(7, 5, 9, 11, finish=("stop",)),
        chat(8, 2, 12, 19, finish=("stop",)),
    ]


def last_lines(*episodes: Iterable[SpanFacts]) -> list[bytes]:
    """Return the lines of the last of these episodes."""
    return project_trace(TRACE, [merge_spans(each) for each in episodes])


def events(lines: Sequence[bytes], name: str, agent_id: str | None = None) -> list[JsonObject]:
    read: list[JsonObject] = [json.loads(line) for line in lines]
    return [
        each for each in read if each["event"] == name and agent_id in (None, each.get("agent_id"))
    ]
