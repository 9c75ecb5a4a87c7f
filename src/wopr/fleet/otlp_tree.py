"""The spans of one trace: who stands above whom, who acted, and whether anybody is still to come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from wopr.fleet.bridge_ids import to_agent_id
from wopr.fleet.otlp_facts import SpanFacts

_SPANS: Final = msgspec.json.Decoder(list[SpanFacts])
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def write_spans(spans: Iterable[SpanFacts]) -> bytes:
    """Write spans as the store keeps them; the same set is the same bytes, in whatever order."""
    return _ENCODER.encode(sorted(gather(spans).values(), key=lambda span: span.span_id))


def read_spans(bodies: Iterable[bytes]) -> dict[str, SpanFacts]:
    """Read spans back, each once."""
    return gather(span for body in bodies for span in _SPANS.decode(body))


def gather(spans: Iterable[SpanFacts]) -> dict[str, SpanFacts]:
    """Spans by their id. Of two that differ and have one id the same one is kept in any order."""
    found: dict[str, SpanFacts] = {}
    for span in spans:
        other = found.get(span.span_id)
        is_better = other is None or (other != span and _weight(span) > _weight(other))
        if is_better:
            found[span.span_id] = span
    return found


def _weight(span: SpanFacts) -> bytes:
    return _ENCODER.encode(span)


class Tree:
    """The spans of a trace, in their places. Parents that form a ring have no place at all."""

    def __init__(self, spans: Mapping[str, SpanFacts]) -> None:
        self.spans = spans
        self._owners: dict[str, SpanFacts | None] = {}
        self._scopes: dict[str, SpanFacts | None] = {}
        self._ends: dict[str, SpanFacts | None] = {}
        names = {to_agent_id(span.agent) for span in spans.values() if span.kind == "agent"}
        self._only = names.pop() if len(names) == 1 else None

    @property
    def is_whole(self) -> bool:
        """Whether every span that is about agents hangs on a root; a root comes last."""
        return all(self._has_root(span) for span in self.told())

    def told(self) -> Iterator[SpanFacts]:
        """The spans that are about agents."""
        return (span for span in self.spans.values() if span.kind != "other")

    def owner(self, span: SpanFacts) -> SpanFacts | None:
        """The agent's invocation that a span belongs to, the nearest above it."""
        return self._nearest(span, self._owners, lambda above: above.kind == "agent")

    def scope(self, span: SpanFacts) -> SpanFacts | None:
        """The nearest span above that is about agents, whatever its kind."""
        return self._nearest(span, self._scopes, lambda above: above.kind != "other")

    def agent_id(self, span: SpanFacts) -> str:
        """The agent behind a span, by its name on the wire.

        A span that hangs on no agent's is put down to the only agent of the trace, or else to
        whom it names, which may be the service.
        """
        if span.kind == "agent":
            return to_agent_id(span.agent)
        owner = self.owner(span)
        if owner is None:
            return self._only or to_agent_id(span.agent)
        return to_agent_id(owner.agent)

    def _has_root(self, span: SpanFacts) -> bool:
        found = self._nearest(span, self._ends, lambda above: not above.parent_id)
        return not span.parent_id or found is not None

    def _nearest(
        self,
        span: SpanFacts,
        known: dict[str, SpanFacts | None],
        is_it: Callable[[SpanFacts], bool],
    ) -> SpanFacts | None:
        """Look upwards; what is found for one span holds for all that are passed on the way."""
        passed: dict[str, None] = {}
        found: SpanFacts | None = None
        while span.span_id not in passed:
            if span.span_id in known:
                found = known[span.span_id]
                break
            passed[span.span_id] = None
            parent = self.spans.get(span.parent_id)
            if parent is None or is_it(parent):
                found = parent
                break
            span = parent
        known.update(dict.fromkeys(passed, found))
        return found
