"""The spans of one trace: parents, agents, completeness, and corrected times.

Clocks of different machines differ, so the time range of a span is limited to that of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from wopr.kahn.bridge.facts import to_agent_id
from wopr.kahn.otlp.spans import SpanFacts

_SPANS: Final = msgspec.json.Decoder(list[SpanFacts])
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def write_spans(spans: Iterable[SpanFacts]) -> bytes:
    """Encode spans for the store, independent of their order."""
    return _ENCODER.encode(sorted(merge_spans(spans).values(), key=lambda span: span.span_id))


def read_spans(bodies: Iterable[bytes]) -> dict[str, SpanFacts]:
    """Decode spans, each once."""
    return merge_spans(span for body in bodies for span in _SPANS.decode(body))


def merge_spans(spans: Iterable[SpanFacts]) -> dict[str, SpanFacts]:
    """Return spans by id. Of different spans with the same id the choice is independent of the order."""
    found: dict[str, SpanFacts] = {}
    for span in spans:
        other = found.get(span.span_id)
        is_chosen = other is None or (other != span and _encode(span) > _encode(other))
        if is_chosen:
            found[span.span_id] = span
    return found


def _encode(span: SpanFacts) -> bytes:
    return _ENCODER.encode(span)


class SpanTree:
    """The spans of a trace with their parents. Spans in a cycle of parents have no root."""

    def __init__(self, spans: Mapping[str, SpanFacts]) -> None:
        self.spans = spans
        self._owners: dict[str, SpanFacts | None] = {}
        self._scopes: dict[str, SpanFacts | None] = {}
        self._roots: dict[str, SpanFacts | None] = {}
        names = {to_agent_id(span.agent) for span in spans.values() if span.kind == "agent"}
        self._only_agent = names.pop() if len(names) == 1 else None

    @property
    def is_whole(self) -> bool:
        """Return whether every span about agents has a root; a root is exported last."""
        return all(self._has_root(span) for span in self.agent_spans())

    def agent_spans(self) -> Iterator[SpanFacts]:
        """Return the spans about agents."""
        return (span for span in self.spans.values() if span.kind != "other")

    def owner(self, span: SpanFacts) -> SpanFacts | None:
        """Return the nearest ancestor that is an invocation of an agent."""
        return self._nearest(span, self._owners, lambda above: above.kind == "agent")

    def scope(self, span: SpanFacts) -> SpanFacts | None:
        """Return the nearest ancestor about agents, of any kind."""
        return self._nearest(span, self._scopes, lambda above: above.kind != "other")

    def agent_id(self, span: SpanFacts) -> str:
        """Return the KAHN id of the agent of a span.

        A span without an invocation above it belongs to the only agent of the trace. If there are
        several agents, it belongs to the agent that it names, which may be the service.
        """
        if span.kind == "agent":
            return to_agent_id(span.agent)
        owner = self.owner(span)
        if owner is None:
            return self._only_agent or to_agent_id(span.agent)
        return to_agent_id(owner.agent)

    def _has_root(self, span: SpanFacts) -> bool:
        found = self._nearest(span, self._roots, lambda above: not above.parent_id)
        return not span.parent_id or found is not None

    def _nearest(
        self,
        span: SpanFacts,
        cache: dict[str, SpanFacts | None],
        matches: Callable[[SpanFacts], bool],
    ) -> SpanFacts | None:
        """Search the ancestors, and cache the result for all visited spans."""
        visited: dict[str, None] = {}
        found: SpanFacts | None = None
        while span.span_id not in visited:
            if span.span_id in cache:
                found = cache[span.span_id]
                break
            visited[span.span_id] = None
            parent = self.spans.get(span.parent_id)
            if parent is None or matches(parent):
                found = parent
                break
            span = parent
        cache.update(dict.fromkeys(visited, found))
        return found


class TimeRange(NamedTuple):
    """The start and the end of a span in nanoseconds, and its depth among spans about agents."""

    start: int
    end: int
    depth: int = 0


def time_ranges(tree: SpanTree) -> dict[str, TimeRange]:
    """Return the time range of each span about agents, by its id."""
    found: dict[str, TimeRange] = {}
    for span in sorted(tree.agent_spans(), key=lambda each: each.span_id):
        _add_time_range(tree, span, found)
    return found


def _add_time_range(tree: SpanTree, span: SpanFacts, found: dict[str, TimeRange]) -> None:
    path: dict[str, SpanFacts] = {}
    above: SpanFacts | None = span
    while above is not None and above.span_id not in found and above.span_id not in path:
        path[above.span_id] = above
        above = tree.scope(above)
    outer = found.get(above.span_id) if above is not None else None
    for each in reversed(path.values()):
        outer = found[each.span_id] = _within(TimeRange(each.start, each.end), outer)


def _within(own: TimeRange, outer: TimeRange | None) -> TimeRange:
    if outer is None:
        return own
    start = min(max(own.start, outer.start), outer.end)
    return TimeRange(start, min(max(own.end, start), outer.end), outer.depth + 1)
