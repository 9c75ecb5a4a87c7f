"""The workflow as a drawing: its own nodes and edges, with what the log says came of them.

An edge is drawn as taken when its source had ended, in a way that the edge carries, by the time
that its target started: in the order of the log, which is the order in which the engine saw it. The
clock is not asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from wopr.console.graph_layout import Layout, is_drawable, layered
from wopr.console.run_log import Entry, RunLog
from wopr.console.words import number
from wopr.protocol.documents import Unset
from wopr.protocol.workflow import TriggerRule, WorkflowEdge, WorkflowNode
from wopr.runtime.library import Compiled

MOST_NODES: Final = 300
# Events of the engine, and of the answers of people.
_NOT_ACTIONS: Final = (
    "node.",
    "run.",
    "interrupt.",
    "approval.",
    "clarification.",
    "conversation.",
    "authorization.",
)
BOX_WIDTH, BOX_HEIGHT = 172, 40
_STEP_X, _STEP_Y = 206, 58
_MARGIN: Final = 10
_LONGEST_NAME: Final = 22
_LONGEST_KIND: Final = 17
# The ends of its source that an edge carries control from.
_DONE, _FAILED = ("node.completed",), ("node.failed",)
_CARRIERS: Final[dict[TriggerRule, tuple[str, ...]]] = {
    "all_success": _DONE,
    "any_success": _DONE,
    "none_failed": _DONE,
    "all_complete": (*_DONE, *_FAILED),
    "any_failed": _FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node of the drawing."""

    node_id: str
    name: str
    kind: str
    agent: str
    status: str
    x: float
    y: float
    attempts: int
    children: int

    @property
    def key(self) -> str:
        """What tells it from the rest of the drawing."""
        return f"box:{self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An edge of the drawing: taken, open, or a cause that is no edge of the workflow.

    `key` tells it from the rest of the drawing.
    """

    key: str
    path: str
    state: str
    title: str
    label: str = ""
    x: float = 0
    y: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All of it, and how large it is."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    width: float
    height: float
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


@dataclass(frozen=True, slots=True)
class Facts:
    """What the log says of each node."""

    statuses: Mapping[str, str]
    attempts: Mapping[str, int]
    children: Mapping[str, int]
    # Pairs of nodes of which the end of the first let the second start.
    carried: Collection[tuple[str, str]]
    # Pairs of nodes of which an event of the first caused one of the second, outside the graph.
    caused: Collection[tuple[str, str]]


NOTHING: Final = Facts({}, {}, {}, (), ())


def draw(compiled: Compiled, facts: Facts = NOTHING) -> Drawing | None:
    """Draw a workflow; None for one that is too large to be of use as a drawing."""
    nodes = compiled.definition.nodes
    if len(nodes) > MOST_NODES:
        return None
    edges = compiled.definition.edges
    back, layout = _layout(compiled)
    if layout is None:
        return None
    places = {
        node.id: (
            _MARGIN + layout.columns[node.id] * _STEP_X,
            _MARGIN + layout.rows[node.id] * _STEP_Y,
        )
        for node in nodes
    }
    arrows = [*_edges(edges, back, layout, places, facts), *_causes(places, facts)]
    depth = 32 if back or facts.caused else 0
    return Drawing(
        boxes=[_box(node, places[node.id], facts) for node in nodes],
        arrows=arrows,
        width=2 * _MARGIN + (layout.width - 1) * _STEP_X + BOX_WIDTH,
        height=2 * _MARGIN + (layout.height - 1) * _STEP_Y + BOX_HEIGHT + depth,
    )


@lru_cache(maxsize=16)
def _layout(compiled: Compiled) -> tuple[frozenset[str], Layout | None]:
    """The edges that close a loop, and the places of the nodes: the same for all runs of it."""
    back = frozenset(edge.id for loop in compiled.graph.loops.values() for edge in loop.back)
    forward = dict.fromkeys(
        (edge.source_node_id, edge.target_node_id)
        for edge in compiled.definition.edges
        if edge.id not in back
    )
    nodes, links = [node.id for node in compiled.definition.nodes], list(forward)
    return back, layered(nodes, links) if is_drawable(nodes, links) else None


def _box(node: WorkflowNode, place: tuple[float, float], facts: Facts) -> Box:
    return Box(
        node_id=node.id,
        name=_cut(node.name),
        kind=_cut(node.type_id.removeprefix("core."), _LONGEST_KIND),
        agent="" if isinstance(node.agent, Unset) else node.agent.agent_id,
        status=facts.statuses.get(node.id, "pending"),
        x=place[0],
        y=place[1],
        attempts=facts.attempts.get(node.id, 0),
        children=facts.children.get(node.id, 0),
    )


def _cut(text: str, most: int = _LONGEST_NAME) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _edges(
    edges: Sequence[WorkflowEdge],
    back: Collection[str],
    layout: Layout,
    places: Mapping[str, tuple[float, float]],
    facts: Facts,
) -> Iterator[Arrow]:
    into: dict[str, list[WorkflowEdge]] = {}
    for edge in edges:
        into.setdefault(edge.target_node_id, []).append(edge)
    for edge in edges:
        ends = (edge.source_node_id, edge.target_node_id)
        is_back = edge.id in back
        path = _below(places, ends) if is_back else _through(layout, places, ends)
        (x1, y1), (x2, y2) = places[ends[0]], places[ends[1]]
        yield Arrow(
            key=f"edge:{edge.id}",
            path=path,
            state="taken" if _is_taken(edge, into, facts) else "open",
            title=f"{ends[0]} → {ends[1]}{_condition(edge)}",
            label="" if isinstance(edge.label, Unset) else _cut(edge.label),
            x=(x1 + BOX_WIDTH + x2) / 2,
            y=(y1 + y2 + BOX_HEIGHT) / 2 - 4,
        )


def _is_taken(edge: WorkflowEdge, into: Mapping[str, Sequence[WorkflowEdge]], facts: Facts) -> bool:
    """Whether control came this way; of a condition that others share the log does not tell."""
    ends = (edge.source_node_id, edge.target_node_id)
    if ends not in facts.carried:
        return False
    if isinstance(edge.condition, Unset):
        return True
    return not any(
        (other.source_node_id, other.target_node_id) in facts.carried
        for other in into[ends[1]]
        if other.id != edge.id
    )


def _condition(edge: WorkflowEdge) -> str:
    condition = edge.condition
    if isinstance(condition, Unset):
        return ""
    if not isinstance(condition.expression, Unset):
        return f" if {condition.expression}"
    left = "" if isinstance(condition.left, Unset) else condition.left
    right = "" if isinstance(condition.right, Unset) else condition.right
    return f" if {left} {condition.type} {right}"


def _through(
    layout: Layout, places: Mapping[str, tuple[float, float]], ends: tuple[str, str]
) -> str:
    """From the right of one box to the left of another, past whatever lies between."""
    x, y = places[ends[0]]
    points = [(x + BOX_WIDTH, y + BOX_HEIGHT / 2)]
    for column, row in layout.bends.get(ends, ()):
        left, middle = _MARGIN + column * _STEP_X, _MARGIN + row * _STEP_Y + BOX_HEIGHT / 2
        points += [(left, middle), (left + BOX_WIDTH, middle)]
    x, y = places[ends[1]]
    points.append((x - 5, y + BOX_HEIGHT / 2))
    path = f"M{number(points[0][0])} {number(points[0][1])}"
    for (x1, y1), (x2, y2) in pairwise(points):
        bend = (x1 + x2) / 2
        path += "C" + " ".join(map(number, (bend, y1, bend, y2, x2, y2)))
    return path


def _below(places: Mapping[str, tuple[float, float]], ends: tuple[str, str]) -> str:
    """Back to an earlier box, in a bow under both."""
    (x1, y1), (x2, y2) = places[ends[0]], places[ends[1]]
    x1, x2 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2
    y1, y2 = y1 + BOX_HEIGHT, y2 + BOX_HEIGHT
    low = max(y1, y2) + 40
    curve = " ".join(map(number, (x1, low, x2, low, x2, y2 + 5)))
    return f"M{number(x1)} {number(y1)}C{curve}"


def _causes(places: Mapping[str, tuple[float, float]], facts: Facts) -> Iterator[Arrow]:
    for ends in sorted(facts.caused):
        if ends[0] in places and ends[1] in places:
            path = _below(places, ends)
            title = f"{ends[0]} caused {ends[1]}"
            yield Arrow(key=f"cause:{title}", path=path, state="caused", title=title)


def causal_pairs(
    log: RunLog, edges: Sequence[WorkflowEdge]
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The pairs of nodes that control was carried between, and those with a cause outside of it."""
    # The last start of each node, and the first end of each kind.
    starts = {e.node_id: e.sequence for e in log.entries if e.event.type == "node.started"}
    ends = {(e.node_id, e.event.type): e.sequence for e in reversed(log.entries)}
    carried = {
        (edge.source_node_id, edge.target_node_id)
        for edge in edges
        for end in _CARRIERS[edge.trigger_rule]
        if ends.get((edge.source_node_id, end), len(log.entries))
        < starts.get(edge.target_node_id, -1)
    }
    joined = {(edge.source_node_id, edge.target_node_id) for edge in edges}
    caused = {pair for pair in _explicit(log) if pair not in joined}
    return carried, caused


def _explicit(log: RunLog) -> Iterator[tuple[str, str]]:
    """Pairs of nodes where an action of one caused an action of the other.

    An event that names no cause of its own has the previous event of the log as its cause,
    whichever node that belongs to. So only causes that are actions of a node count: a decision or
    a message does, the start, the end or the skipping of a node does not.
    """
    for entry in log.entries:
        cause = log.by_id.get(entry.cause)
        if cause is None or not _is_action(entry) or not _is_action(cause):
            continue
        if cause.node_id != entry.node_id:
            yield cause.node_id, entry.node_id


def _is_action(entry: Entry) -> bool:
    """Whether a node did it, rather than the engine with the node or a person at its gate."""
    return bool(entry.node_id) and not entry.event.type.startswith(_NOT_ACTIONS)
