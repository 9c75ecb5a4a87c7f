"""The timeline of a run: one lane per node, one bar per attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from wopr.console.formatting import duration
from wopr.console.runs.log import Entry
from wopr.protocol.documents import Unset
from wopr.protocol.workflow import WorkflowDefinition

# The events that end an attempt, and its outcome.
_ENDS: Final = {
    "node.completed": "completed",
    "node.failed": "failed",
    "node.cancelled": "cancelled",
    "node.retried": "retried",
}


@dataclass(slots=True)
class SuspendedTime:
    """A period of an attempt in which it was suspended."""

    start: int
    end: int | None = None


@dataclass(slots=True)
class AttemptSpan:
    """One attempt of a node. `end` is None while it is running."""

    node_id: str
    attempt: int
    start: int
    sequence: int
    end: int | None = None
    outcome: str = "running"
    waits: list[SuspendedTime] = field(default_factory=list[SuspendedTime])
    children: list[str] = field(default_factory=list[str])

    @property
    def is_waiting(self) -> bool:
        """Return whether the attempt is suspended now."""
        return bool(self.waits) and self.waits[-1].end is None and self.end is None


@dataclass(slots=True)
class NodeSpans:
    """All attempts of one node, in order."""

    node_id: str
    spans: list[AttemptSpan] = field(default_factory=list[AttemptSpan])
    skipped: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether an attempt is running."""
        return bool(self.spans) and self.spans[-1].end is None

    @property
    def children(self) -> list[str]:
        """The child runs of the node."""
        return [child for span in self.spans for child in span.children]


@dataclass(slots=True)
class GrowingSpans:
    """The nodes of a growing log. Each call reads only the new events."""

    nodes: dict[str, NodeSpans] = field(default_factory=dict[str, NodeSpans])
    read_count: int = 0
    last: Entry | None = None

    def update(self, entries: Sequence[Entry]) -> dict[str, NodeSpans]:
        """Return the nodes of a log.

        A log that does not continue the last log is read from the start.
        """
        if self.read_count > len(entries) or (
            self.read_count and entries[self.read_count - 1] is not self.last
        ):
            self.nodes, self.read_count = {}, 0
        _add_events(self.nodes, islice(entries, self.read_count, None))
        self.read_count, self.last = len(entries), entries[-1] if entries else None
        return self.nodes


def node_spans(entries: Iterable[Entry]) -> dict[str, NodeSpans]:
    """Return the nodes of a log in the order of their start."""
    found: dict[str, NodeSpans] = {}
    _add_events(found, entries)
    return found


def _add_events(found: dict[str, NodeSpans], entries: Iterable[Entry]) -> None:
    for entry in entries:
        node_id = entry.event.node_id
        if not isinstance(node_id, Unset) and entry.event.type.startswith("node."):
            node = found.get(node_id)
            if node is None:
                node = found[node_id] = NodeSpans(node_id)
            _add_event(node, entry)


def _add_event(node: NodeSpans, entry: Entry) -> None:
    kind = entry.event.type
    if kind == "node.started":
        node.skipped = ""
        node.spans.append(AttemptSpan(node.node_id, _attempt(entry), entry.at, entry.sequence))
        return
    if kind == "node.skipped":
        node.skipped = str(entry.payload.get("reason", "")) or "skipped"
        return
    span = node.spans[-1] if node.spans else None
    if span is None or span.end is not None:
        return
    if kind == "node.suspended":
        span.waits.append(SuspendedTime(entry.at))
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


# The page of an active run with more nodes than this has lanes for the newest nodes only.
MANY_NODES: Final = 200
# The number of these lanes, and how many of them are for nodes that have not started.
NEWEST_LANES: Final = 100
_LANES_AHEAD: Final = 20
_TICKS_AT_MOST: Final = 8
# Minimum length of the axis of an active run, in milliseconds.
_SHORTEST_RUNNING: Final = 1000
# Minimum width of a bar, in per cent.
_NARROWEST: Final = 0.3
_STEPS: Final = tuple(
    step * unit
    for unit, steps in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 5, 10, 20, 50, 100, 200, 365)),
    )
    for step in steps
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A period in a lane, in per cent of the axis."""

    x: float
    width: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the timeline: a node, or a child run below its node."""

    node_id: str
    name: str
    kind: str
    status: str
    run_id: str
    depth: int = 0
    attempts: int = 0
    took: int | None = None
    bars: tuple[Bar, ...] = ()
    note: str = ""
    # For a child run: whether its lanes are shown.
    child_run_id: str = ""
    is_open: bool = False

    @property
    def key(self) -> str:
        """The unique key on the page."""
        return self.child_run_id or f"{self.run_id}:{self.node_id}"


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis of a timeline.

    Bars of running attempts end at `now`, by default the end of the axis.
    """

    start: int
    end: int
    now: int | None = None

    @classmethod
    def running(cls, start: int, now: int) -> Axis:
        """Return the axis of an active run.

        It is longer than the run and doubles when needed, so that ended bars do not move with each
        rendering.
        """
        length = _SHORTEST_RUNNING
        while length < now - start:
            length *= 2
        return cls(start, start + length, now)

    def until(self, instant: int | None) -> int:
        """Return the end of a period; now if it has no end."""
        if instant is not None:
            return instant
        return self.end if self.now is None else self.now

    @property
    def length(self) -> int:
        """The length of the axis in milliseconds, at least 1."""
        return max(self.end - self.start, 1)

    def place(self, instant: int) -> float:
        """Return the position of an instant, in per cent."""
        return 100 * min(max(instant - self.start, 0), self.length) / self.length

    def ticks(self) -> list[Tick]:
        """Return a few ticks at round times."""
        wanted = (step for step in _STEPS if self.length / step <= _TICKS_AT_MOST)
        # The producer of a pushed run sets its times, so it may have taken a thousand years.
        step = next(wanted, -(-self.length // _TICKS_AT_MOST))
        return [
            Tick(100 * at / self.length, _label(at))
            for at in range(0, self.length + 1, step)
            if at / self.length <= 0.97
        ]


def _label(at: int) -> str:
    """Return the time of a tick, in one unit if it is a multiple of the unit."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if at and at % unit == 0:
            return f"{at // unit} {name}"
    if at >= 1000:
        return f"{at / 1000:g} s" if at < 60_000 else duration(at)
    return f"{at} ms" if at else "0"


@dataclass(frozen=True, slots=True)
class ChildRunLanes:
    """A child run, with its lanes if it is open."""

    run_id: str
    workflow_id: str
    status: str
    start: int
    end: int | None
    lanes: Sequence[Lane] = field(default_factory=tuple)
    is_open: bool = False


def lanes_of(
    run_id: str,
    definition: WorkflowDefinition,
    nodes: Mapping[str, NodeSpans],
    statuses: Mapping[str, str],
    children: Mapping[str, ChildRunLanes],
    axis: Axis,
    *,
    depth: int = 0,
    only_newest: bool = False,
) -> list[Lane]:
    """Return the lanes of a run: started nodes in the order of their start, then the other nodes.

    With `only_newest` and many nodes, only running nodes, recently started nodes and a few nodes
    that have not started get a lane.
    """
    known = {node.id: node for node in definition.nodes}
    found: list[Lane] = []
    for node_id in _nodes_with_lanes(known, nodes, only_newest=only_newest):
        spans = nodes.get(node_id, NodeSpans(node_id))
        ended = [span for span in spans.spans if span.end is not None]
        found.append(
            Lane(
                node_id=node_id,
                name=known[node_id].name,
                kind=known[node_id].type_id,
                status=statuses.get(node_id, "pending"),
                run_id=run_id,
                depth=depth,
                attempts=len(spans.spans),
                took=_took(spans, axis) if spans.spans else None,
                bars=tuple(bar for span in spans.spans for bar in _bars(span, axis)),
                note=spans.skipped if not ended else "",
            )
        )
        for child in spans.children:
            if child in children:
                found += _child_lanes(children[child], node_id, axis, depth + 1)
    return found


def _nodes_with_lanes(
    known: Collection[str], nodes: Mapping[str, NodeSpans], *, only_newest: bool
) -> list[str]:
    """Return the nodes that get a lane, in order."""
    begun = [node_id for node_id in nodes if node_id in known]
    order = [*begun, *(node_id for node_id in known if node_id not in nodes)]
    if not only_newest or len(order) <= MANY_NODES:
        return order
    last = min(max(len(begun) + _LANES_AHEAD, NEWEST_LANES), len(order))
    first = last - NEWEST_LANES
    return [*(node_id for node_id in order[:first] if nodes[node_id].is_open), *order[first:last]]


def _child_lanes(child: ChildRunLanes, node_id: str, axis: Axis, depth: int) -> list[Lane]:
    end = axis.until(child.end)
    bar = _bar(axis, child.start, end, _TONES[_outcome(child.status)], f"run {child.run_id}")
    own = Lane(
        node_id=node_id,
        name=child.workflow_id,
        kind="child run",
        status=child.status,
        run_id=child.run_id,
        depth=depth,
        took=end - child.start,
        bars=(bar,),
        child_run_id=child.run_id,
        is_open=child.is_open,
    )
    return [own, *child.lanes]


_TONES: Final = {
    "completed": "good",
    "failed": "bad",
    "retried": "bad",
    "cancelled": "quiet",
    "running": "active",
    "waiting": "waiting",
}


def _outcome(status: str) -> str:
    return "waiting" if status.startswith("waiting-") else status if status in _TONES else "running"


def _took(spans: NodeSpans, axis: Axis) -> int:
    return sum(axis.until(span.end) - span.start for span in spans.spans)


def _bars(span: AttemptSpan, axis: Axis) -> list[Bar]:
    end = axis.until(span.end)
    attempt = f"attempt {span.attempt + 1}, " if span.attempt else ""
    title = f"{span.node_id}: {attempt}{span.outcome}, {duration(end - span.start)}"
    bars = [_bar(axis, span.start, end, _TONES[span.outcome], title)]
    for wait in span.waits:
        until = axis.until(wait.end)
        wait_title = f"{span.node_id}: waited {duration(until - wait.start)}"
        bars.append(_bar(axis, wait.start, until, "waiting", wait_title))
    return bars


def _bar(axis: Axis, start: int, end: int, tone: str, title: str) -> Bar:
    x = axis.place(start)
    width = max(axis.place(end) - x, _NARROWEST)
    return Bar(min(x, 100 - _NARROWEST), width, tone, title)
