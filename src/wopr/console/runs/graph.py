"""The workflow as a graph: nodes and edges, with their state in the log of a run.

An edge is drawn as taken if its source ended before its target started, with an end that matches
the edge's trigger rule. The order is that of the log, not of the timestamps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

from wopr.console.formatting import number
from wopr.console.runs.log import DecodedLog, Entry
from wopr.protocol.documents import Unset
from wopr.protocol.workflow import TriggerRule, WorkflowEdge, WorkflowNode
from wopr.runs.definitions.library import CompiledWorkflow

Edge: TypeAlias = tuple[str, str]
# A node, or the point where an edge crosses a layer.
_Vertex: TypeAlias = str | tuple[str, str, int]

# The largest sum of layers that the edges of a graph cross.
MAX_VERTICES: Final = 3000
_SWEEPS: Final = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """The column and row of every node, and the bends of each edge."""

    columns: Mapping[str, int]
    rows: Mapping[str, float]
    bends: Mapping[Edge, tuple[tuple[int, float], ...]]
    width: int
    height: float


def is_drawable(nodes: Sequence[str], forward: Sequence[Edge]) -> bool:
    """Return whether the edges of a graph cross few enough layers for a readable drawing."""
    columns = _columns(nodes, forward)
    return sum(columns[target] - columns[source] for source, target in forward) <= MAX_VERTICES


def lay_out(nodes: Sequence[str], forward: Sequence[Edge]) -> Layout:
    """Lay out a graph without cycles. Equal graphs get equal layouts."""
    columns = _columns(nodes, forward)
    layers, links = _with_bends(nodes, forward, columns)
    _order(layers, links)
    rows = _rows(layers, links)
    bends = {
        edge: tuple(
            (column, rows[edge[0], edge[1], column])
            for column in range(columns[edge[0]] + 1, columns[edge[1]])
        )
        for edge in forward
    }
    return Layout(
        columns=columns,
        rows={node: rows[node] for node in nodes},
        bends=bends,
        width=len(layers),
        height=max(rows.values(), default=0) + 1,
    )


def _columns(nodes: Sequence[str], forward: Sequence[Edge]) -> dict[str, int]:
    """Return the column of each node: the longest path from a start, so that edges go right."""
    columns = dict.fromkeys(nodes, 0)
    waiting = dict.fromkeys(nodes, 0)
    targets: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in forward:
        waiting[target] += 1
        targets[source].append(target)
    ready = [node for node in nodes if not waiting[node]]
    for node in ready:
        for target in targets[node]:
            columns[target] = max(columns[target], columns[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return columns


def _with_bends(
    nodes: Sequence[str], forward: Sequence[Edge], columns: Mapping[str, int]
) -> tuple[list[list[_Vertex]], list[tuple[_Vertex, _Vertex]]]:
    """Return the layers with a vertex for each edge that crosses them, and links between layers."""
    layers: list[list[_Vertex]] = [[] for _ in range(max(columns.values(), default=-1) + 1)]
    for node in nodes:
        layers[columns[node]].append(node)
    links: list[tuple[_Vertex, _Vertex]] = []
    for source, target in forward:
        before: _Vertex = source
        for column in range(columns[source] + 1, columns[target]):
            vertex: _Vertex = (source, target, column)
            layers[column].append(vertex)
            links.append((before, vertex))
            before = vertex
        links.append((before, target))
    return layers, links


def _order(layers: list[list[_Vertex]], links: Sequence[tuple[_Vertex, _Vertex]]) -> None:
    """Order the vertices of each layer by their neighbours in several sweeps, to avoid crossings."""
    before = _neighbours((target, source) for source, target in links)
    after = _neighbours(links)
    places = {vertex: place for layer in layers for place, vertex in enumerate(layer)}
    for sweep in range(_SWEEPS):
        is_forward = sweep % 2 == 0
        neighbours = before if is_forward else after
        for layer in layers if is_forward else reversed(layers):
            wanted = {
                vertex: _mean([places[n] for n in neighbours.get(vertex, ())], places[vertex])
                for vertex in layer
            }
            layer.sort(key=lambda vertex: wanted[vertex])
            places.update((vertex, place) for place, vertex in enumerate(layer))


def _rows(
    layers: Sequence[Sequence[_Vertex]], links: Sequence[tuple[_Vertex, _Vertex]]
) -> dict[_Vertex, float]:
    """Return the row of each vertex: the mean row of its neighbours, without overlaps."""
    before = _neighbours((target, source) for source, target in links)
    after = _neighbours(links)
    rows: dict[_Vertex, float] = {}
    for layer in layers:
        wanted = [_mean([rows[n] for n in before.get(s, ())], i) for i, s in enumerate(layer)]
        rows.update(zip(layer, _spread(wanted), strict=True))
    for layer in reversed(layers[:-1] if layers else []):
        wanted = [_mean([rows[n] for n in after.get(vertex, ())], rows[vertex]) for vertex in layer]
        rows.update(zip(layer, _spread(wanted), strict=True))
    top = min(rows.values(), default=0)
    return {vertex: row - top for vertex, row in rows.items()}


def _spread(wanted: Sequence[float]) -> list[float]:
    """Move rows in the same order at least one step apart, as little as possible."""
    placed: list[float] = []
    for want in wanted:
        placed.append(max(want, placed[-1] + 1) if placed else want)
    if not placed:
        return placed
    shift = sum(wanted) / len(wanted) - sum(placed) / len(placed)
    return [place + shift for place in placed]


def _neighbours(links: Iterable[tuple[_Vertex, _Vertex]]) -> dict[_Vertex, list[_Vertex]]:
    found: dict[_Vertex, list[_Vertex]] = {}
    for source, target in links:
        found.setdefault(source, []).append(target)
    return found


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


MAX_NODES: Final = 300
# Prefixes of events of the engine, and of people's answers.
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
# The events that end the source of an edge with this trigger rule so that the edge is taken.
_DONE, _FAILED = ("node.completed",), ("node.failed",)
_TAKING_EVENTS: Final[dict[TriggerRule, tuple[str, ...]]] = {
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
        """The unique key in the drawing."""
        return f"box:{self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An edge of the drawing: taken, open, or a cause that is not an edge of the workflow.

    `key` is unique in the drawing.
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
    """All boxes and arrows of a workflow, and the size of the drawing."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    width: float
    height: float
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """GraphFacts from the log about each node."""

    statuses: Mapping[str, str]
    attempts: Mapping[str, int]
    children: Mapping[str, int]
    # Pairs of nodes where the end of the first let the second start.
    taken: Collection[tuple[str, str]]
    # Pairs of nodes without an edge, where an event of the first caused an event of the second.
    caused: Collection[tuple[str, str]]


NO_FACTS: Final = GraphFacts({}, {}, {}, (), ())


def draw(compiled: CompiledWorkflow, facts: GraphFacts = NO_FACTS) -> Drawing | None:
    """Draw a workflow; None if it is too large for a readable drawing."""
    nodes = compiled.definition.nodes
    if len(nodes) > MAX_NODES:
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
def _layout(compiled: CompiledWorkflow) -> tuple[frozenset[str], Layout | None]:
    """Return the edges that close a loop, and the layout. Both are the same for all runs."""
    back = frozenset(edge.id for loop in compiled.graph.loops.values() for edge in loop.back)
    forward = dict.fromkeys(
        (edge.source_node_id, edge.target_node_id)
        for edge in compiled.definition.edges
        if edge.id not in back
    )
    nodes, links = [node.id for node in compiled.definition.nodes], list(forward)
    return back, lay_out(nodes, links) if is_drawable(nodes, links) else None


def _box(node: WorkflowNode, place: tuple[float, float], facts: GraphFacts) -> Box:
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
    facts: GraphFacts,
) -> Iterator[Arrow]:
    into: dict[str, list[WorkflowEdge]] = {}
    for edge in edges:
        into.setdefault(edge.target_node_id, []).append(edge)
    for edge in edges:
        ends = (edge.source_node_id, edge.target_node_id)
        is_back = edge.id in back
        path = _path_below(places, ends) if is_back else _path_through(layout, places, ends)
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


def _is_taken(
    edge: WorkflowEdge, into: Mapping[str, Sequence[WorkflowEdge]], facts: GraphFacts
) -> bool:
    """Return whether the edge was taken.

    If several edges may have been taken, the log does not say which.
    """
    ends = (edge.source_node_id, edge.target_node_id)
    if ends not in facts.taken:
        return False
    if isinstance(edge.condition, Unset):
        return True
    return not any(
        (other.source_node_id, other.target_node_id) in facts.taken
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


def _path_through(
    layout: Layout, places: Mapping[str, tuple[float, float]], ends: tuple[str, str]
) -> str:
    """Return the path from the right of one box to the left of another, around other boxes."""
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


def _path_below(places: Mapping[str, tuple[float, float]], ends: tuple[str, str]) -> str:
    """Return the path back to an earlier box, in a curve below both boxes."""
    (x1, y1), (x2, y2) = places[ends[0]], places[ends[1]]
    x1, x2 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2
    y1, y2 = y1 + BOX_HEIGHT, y2 + BOX_HEIGHT
    low = max(y1, y2) + 40
    curve = " ".join(map(number, (x1, low, x2, low, x2, y2 + 5)))
    return f"M{number(x1)} {number(y1)}C{curve}"


def _causes(places: Mapping[str, tuple[float, float]], facts: GraphFacts) -> Iterator[Arrow]:
    for ends in sorted(facts.caused):
        if ends[0] in places and ends[1] in places:
            path = _path_below(places, ends)
            title = f"{ends[0]} caused {ends[1]}"
            yield Arrow(key=f"cause:{title}", path=path, state="caused", title=title)


def causal_pairs(
    log: DecodedLog, edges: Sequence[WorkflowEdge]
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the pairs of nodes with a taken edge, and the pairs with a cause but no edge."""
    # The last start of each node, and the first end of each kind.
    starts = {e.node_id: e.sequence for e in log.entries if e.event.type == "node.started"}
    ends = {(e.node_id, e.event.type): e.sequence for e in reversed(log.entries)}
    taken = {
        (edge.source_node_id, edge.target_node_id)
        for edge in edges
        for end in _TAKING_EVENTS[edge.trigger_rule]
        if ends.get((edge.source_node_id, end), len(log.entries))
        < starts.get(edge.target_node_id, -1)
    }
    joined = {(edge.source_node_id, edge.target_node_id) for edge in edges}
    caused = {pair for pair in _caused_actions(log) if pair not in joined}
    return taken, caused


def _caused_actions(log: DecodedLog) -> Iterator[tuple[str, str]]:
    """Return pairs of nodes where an action of one caused an action of the other.

    An event without an explicit cause has the previous event of the log as its cause, of any node.
    So only actions count as causes, such as a decision or a message. The start, the end and the
    skipping of a node do not count.
    """
    for entry in log.entries:
        cause = log.by_id.get(entry.cause)
        if cause is None or not _is_action(entry) or not _is_action(cause):
            continue
        if cause.node_id != entry.node_id:
            yield cause.node_id, entry.node_id


def _is_action(entry: Entry) -> bool:
    """Return whether the event is an action of a node, not of the engine or a person."""
    return bool(entry.node_id) and not entry.event.type.startswith(_NOT_ACTIONS)
