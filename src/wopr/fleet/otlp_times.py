"""When spans of a trace began and ended, on one clock.

Spans of one trace come from several machines, whose clocks differ. A span lies within the one that
it belongs to, so what a foreign clock puts outside is moved to the edge. How long a span took is
told by its own clock, and stays.
"""

from __future__ import annotations

from typing import NamedTuple

from wopr.fleet.otlp_facts import SpanFacts
from wopr.fleet.otlp_tree import Tree


class Stretch(NamedTuple):
    """From when to when, in nanoseconds, and how many spans about agents stand above."""

    start: int
    end: int
    depth: int = 0


def stretches(tree: Tree) -> dict[str, Stretch]:
    """Where each span about agents lies, by its id."""
    found: dict[str, Stretch] = {}
    for span in sorted(tree.told(), key=lambda each: each.span_id):
        _place(tree, span, found)
    return found


def _place(tree: Tree, span: SpanFacts, found: dict[str, Stretch]) -> None:
    way: dict[str, SpanFacts] = {}
    above: SpanFacts | None = span
    while above is not None and above.span_id not in found and above.span_id not in way:
        way[above.span_id] = above
        above = tree.scope(above)
    outer = found.get(above.span_id) if above is not None else None
    for each in reversed(way.values()):
        outer = found[each.span_id] = _within(Stretch(each.start, each.end), outer)


def _within(own: Stretch, outer: Stretch | None) -> Stretch:
    if outer is None:
        return own
    start = min(max(own.start, outer.start), outer.end)
    return Stretch(start, min(max(own.end, start), outer.end), outer.depth + 1)
