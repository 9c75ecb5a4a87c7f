"""The waterfall: a lane per node with a bar per attempt, on one axis of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wopr.console.spans import NodeSpans, Span
from wopr.console.words import duration
from wopr.protocol.workflow import WorkflowDefinition

# While a run with more nodes than this goes on, its page has lanes for the newest of them only.
MANY_NODES: Final = 200
# The number of these lanes, and how many of them are for nodes that have not begun.
NEWEST_LANES: Final = 100
_LANES_AHEAD: Final = 20
_TICKS_AT_MOST: Final = 8
# The axis of a run that goes on is at least so many milliseconds long.
_SHORTEST_RUNNING: Final = 1000
# Narrower than this, in per cent, a bar could not be seen.
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
    """A stretch of a lane, in per cent of the axis."""

    x: float
    width: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A line of the waterfall: a node, or a child run below the node that started it."""

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
    # For a child run: whether its own lanes follow.
    child_run_id: str = ""
    is_open: bool = False

    @property
    def key(self) -> str:
        """What tells it from the other lanes of the page."""
        return self.child_run_id or f"{self.run_id}:{self.node_id}"


@dataclass(frozen=True, slots=True)
class Axis:
    """From the first instant to the last that is drawn.

    `now` is where what is under way ends; by default at the end of the axis.
    """

    start: int
    end: int
    now: int | None = None

    @classmethod
    def running(cls, start: int, now: int) -> Axis:
        """The axis of a run that goes on.

        It is longer than the run and grows in steps, so that the places of what has ended do not
        move with every drawing.
        """
        length = _SHORTEST_RUNNING
        while length < now - start:
            length *= 2
        return cls(start, start + length, now)

    def until(self, instant: int | None) -> int:
        """The end of a stretch; that of one under way is now."""
        if instant is not None:
            return instant
        return self.end if self.now is None else self.now

    @property
    def length(self) -> int:
        """How long it is; never nothing, so that everything has a place on it."""
        return max(self.end - self.start, 1)

    def place(self, instant: int) -> float:
        """Where an instant is, in per cent."""
        return 100 * min(max(instant - self.start, 0), self.length) / self.length

    def ticks(self) -> list[Tick]:
        """A few round marks."""
        wanted = (step for step in _STEPS if self.length / step <= _TICKS_AT_MOST)
        # Who pushes a run says when it was: it may have taken a thousand years.
        step = next(wanted, -(-self.length // _TICKS_AT_MOST))
        return [
            Tick(100 * at / self.length, _label(at))
            for at in range(0, self.length + 1, step)
            if at / self.length <= 0.97
        ]


def _label(at: int) -> str:
    """A mark's time, in one unit where it comes out even."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if at and at % unit == 0:
            return f"{at // unit} {name}"
    if at >= 1000:
        return f"{at / 1000:g} s" if at < 60_000 else duration(at)
    return f"{at} ms" if at else "0"


@dataclass(frozen=True, slots=True)
class ChildRuns:
    """A child run with what is known of it, and its own lanes when it is opened."""

    run_id: str
    workflow_id: str
    status: str
    start: int
    end: int | None
    lanes: Sequence[Lane] = field(default_factory=tuple)
    is_open: bool = False


def lanes(
    run_id: str,
    definition: WorkflowDefinition,
    nodes: Mapping[str, NodeSpans],
    statuses: Mapping[str, str],
    children: Mapping[str, ChildRuns],
    axis: Axis,
    *,
    depth: int = 0,
    only_newest: bool = False,
) -> list[Lane]:
    """The lanes of a run: nodes in the order in which they began, then those that did not yet.

    With `only_newest`, and when there are many nodes, only those under way, those that began last
    and a few that come next have a lane.
    """
    known = {node.id: node for node in definition.nodes}
    found: list[Lane] = []
    for node_id in _shown(known, nodes, only_newest=only_newest):
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


def _shown(
    known: Collection[str], nodes: Mapping[str, NodeSpans], *, only_newest: bool
) -> list[str]:
    """The nodes that have a lane, in order."""
    begun = [node_id for node_id in nodes if node_id in known]
    order = [*begun, *(node_id for node_id in known if node_id not in nodes)]
    if not only_newest or len(order) <= MANY_NODES:
        return order
    last = min(max(len(begun) + _LANES_AHEAD, NEWEST_LANES), len(order))
    first = last - NEWEST_LANES
    return [*(node_id for node_id in order[:first] if nodes[node_id].is_open), *order[first:last]]


def _child_lanes(child: ChildRuns, node_id: str, axis: Axis, depth: int) -> list[Lane]:
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


def _bars(span: Span, axis: Axis) -> list[Bar]:
    end = axis.until(span.end)
    attempt = f"attempt {span.attempt + 1}, " if span.attempt else ""
    title = f"{span.node_id}: {attempt}{span.outcome}, {duration(end - span.start)}"
    bars = [_bar(axis, span.start, end, _TONES[span.outcome], title)]
    for wait in span.waits:
        until = axis.until(wait.end)
        told = f"{span.node_id}: waited {duration(until - wait.start)}"
        bars.append(_bar(axis, wait.start, until, "waiting", told))
    return bars


def _bar(axis: Axis, start: int, end: int, tone: str, title: str) -> Bar:
    x = axis.place(start)
    width = max(axis.place(end) - x, _NARROWEST)
    return Bar(min(x, 100 - _NARROWEST), width, tone, title)
