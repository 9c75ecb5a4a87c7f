"""What each node did when: one span per attempt, read from the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from wopr.console.run_log import Entry
from wopr.protocol.documents import Unset

# The event that ends an attempt, and what became of it.
_ENDS: Final = {
    "node.completed": "completed",
    "node.failed": "failed",
    "node.cancelled": "cancelled",
    "node.retried": "retried",
}


@dataclass(slots=True)
class Wait:
    """A stretch of an attempt in which it waited for the outside."""

    start: int
    end: int | None = None


@dataclass(slots=True)
class Span:
    """One attempt of a node. `end` is None while it is under way."""

    node_id: str
    attempt: int
    start: int
    sequence: int
    end: int | None = None
    outcome: str = "running"
    waits: list[Wait] = field(default_factory=list[Wait])
    children: list[str] = field(default_factory=list[str])

    @property
    def is_waiting(self) -> bool:
        """Whether it waits now."""
        return bool(self.waits) and self.waits[-1].end is None and self.end is None


@dataclass(slots=True)
class NodeSpans:
    """All attempts of one node, in order."""

    node_id: str
    spans: list[Span] = field(default_factory=list[Span])
    skipped: str = ""

    @property
    def is_open(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self.spans) and self.spans[-1].end is None

    @property
    def children(self) -> list[str]:
        """The runs that it started."""
        return [child for span in self.spans for child in span.children]


@dataclass(slots=True)
class GrowingSpans:
    """The nodes of a log that grows. Each drawing takes up only the events that are new to it."""

    nodes: dict[str, NodeSpans] = field(default_factory=dict[str, NodeSpans])
    taken: int = 0
    last: Entry | None = None

    def of(self, entries: Sequence[Entry]) -> dict[str, NodeSpans]:
        """Every node of a log, which begins with the log that was given before or is another."""
        if self.taken > len(entries) or (self.taken and entries[self.taken - 1] is not self.last):
            self.nodes, self.taken = {}, 0
        _take_all(self.nodes, islice(entries, self.taken, None))
        self.taken, self.last = len(entries), entries[-1] if entries else None
        return self.nodes


def node_spans(entries: Iterable[Entry]) -> dict[str, NodeSpans]:
    """Every node that the log speaks of, in the order in which they began."""
    found: dict[str, NodeSpans] = {}
    _take_all(found, entries)
    return found


def _take_all(found: dict[str, NodeSpans], entries: Iterable[Entry]) -> None:
    for entry in entries:
        node_id = entry.event.node_id
        if not isinstance(node_id, Unset) and entry.event.type.startswith("node."):
            node = found.get(node_id)
            if node is None:
                node = found[node_id] = NodeSpans(node_id)
            _take(node, entry)


def _take(node: NodeSpans, entry: Entry) -> None:
    kind = entry.event.type
    if kind == "node.started":
        node.skipped = ""
        node.spans.append(Span(node.node_id, _attempt(entry), entry.at, entry.sequence))
        return
    if kind == "node.skipped":
        node.skipped = str(entry.payload.get("reason", "")) or "skipped"
        return
    span = node.spans[-1] if node.spans else None
    if span is None or span.end is not None:
        return
    if kind == "node.suspended":
        span.waits.append(Wait(entry.at))
    elif kind == "node.resumed" and span.waits:
        span.waits[-1].end = entry.at
    elif kind == "node.dispatched":
        span.children.append(str(entry.payload.get("childRunId", "")))
    elif kind in _ENDS:
        span.end, span.outcome = entry.at, _ENDS[kind]
        if span.waits and span.waits[-1].end is None:
            span.waits[-1].end = entry.at


def _attempt(entry: Entry) -> int:
    attempt = entry.payload.get("attempt", 0)
    return attempt if isinstance(attempt, int) else 0
