"""A workflow definition compiled for planning: who follows whom, and where a loop closes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.workflow import (
    ChannelDeclaration,
    MaskingMode,
    WorkflowDefinition,
    WorkflowEdge,
    WorkflowNode,
)

Mask: TypeAlias = Callable[[JsonObject, Collection[str], MaskingMode], JsonObject]


@dataclass(frozen=True, slots=True)
class Loop:
    """A cycle that may be entered again: its head, its members, and the edges that close it."""

    head: str
    members: frozenset[str]
    back: tuple[WorkflowEdge, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in the definition's own order, with forward edges apart from the back edges of loops."""

    definition: WorkflowDefinition
    nodes: Mapping[str, WorkflowNode]
    incoming: Mapping[str, tuple[WorkflowEdge, ...]]
    outgoing: Mapping[str, tuple[WorkflowEdge, ...]]
    loops: Mapping[str, Loop]
    # For a node inside loops: the heads of those loops.
    enclosing: Mapping[str, tuple[str, ...]]
    # For an edge that leaves loops, by its id: the head of the outermost of them.
    leaves: Mapping[str, str]
    sensitive_variables: frozenset[str]
    sensitive_channels: frozenset[str]
    # What variables and channels begin with, as a reader may see it.
    shown_variables: JsonObject
    shown_channels: JsonObject

    @property
    def channels(self) -> Mapping[str, ChannelDeclaration]:
        """The declared channels; empty unless the workflow is channel-aware."""
        return self.definition.channels

    @property
    def masking(self) -> MaskingMode:
        """How this workflow's sensitive values are written to the log."""
        return _masking(self.definition)

    def sinks(self) -> Iterator[WorkflowNode]:
        """Nodes that nothing follows."""
        return (node for node in self.nodes.values() if not self.outgoing[node.id])


def default_variables(definition: WorkflowDefinition) -> JsonObject:
    """The true defaults of variables."""
    return {
        v.name: v.default_value
        for v in definition.variables
        if not isinstance(v.default_value, Unset)
    }


def default_channels(definition: WorkflowDefinition) -> JsonObject:
    """The true defaults of channels."""
    return {
        n: c.default for n, c in definition.channels.items() if not isinstance(c.default, Unset)
    }


def leave_out(members: JsonObject, names: Collection[str], mode: MaskingMode) -> JsonObject:
    """Hide members by showing none of them."""
    if mode == "passthrough":
        return members
    return {name: value for name, value in members.items() if name not in names}


def compile_graph(
    definition: WorkflowDefinition, reentrant: Collection[str], mask: Mask = leave_out
) -> Graph:
    """Compile a checked definition.

    `reentrant` are the type ids that may head a loop; `mask` hides sensitive defaults.
    """
    variables = frozenset(v.name for v in definition.variables if v.sensitive)
    channels = frozenset(n for n, c in definition.channels.items() if c.sensitive)
    masking = _masking(definition)
    nodes = {node.id: node for node in definition.nodes}
    loops = {loop.head: loop for loop in _loops(definition.nodes, definition.edges, reentrant)}
    back = {edge.id for loop in loops.values() for edge in loop.back}
    incoming: dict[str, list[WorkflowEdge]] = {node_id: [] for node_id in nodes}
    outgoing: dict[str, list[WorkflowEdge]] = {node_id: [] for node_id in nodes}
    for edge in definition.edges:
        if edge.id not in back:
            incoming[edge.target_node_id].append(edge)
            outgoing[edge.source_node_id].append(edge)
    enclosing = {
        node_id: tuple(head for head, loop in loops.items() if node_id in loop.members)
        for node_id in nodes
    }
    return Graph(
        definition=definition,
        nodes=nodes,
        incoming={node_id: tuple(edges) for node_id, edges in incoming.items()},
        outgoing={node_id: tuple(edges) for node_id, edges in outgoing.items()},
        loops=loops,
        enclosing=enclosing,
        leaves=dict(_leaves(definition.edges, loops, enclosing)),
        sensitive_variables=variables,
        sensitive_channels=channels,
        shown_variables=mask(default_variables(definition), variables, masking),
        shown_channels=mask(default_channels(definition), channels, masking),
    )


def _masking(definition: WorkflowDefinition) -> MaskingMode:
    mode = definition.metadata.compliance_config.masking_mode
    return "mask" if isinstance(mode, Unset) else mode


def _loops(
    nodes: list[WorkflowNode], all_edges: list[WorkflowEdge], reentrant: Collection[str]
) -> Iterator[Loop]:
    """Find every loop, an outer one before those inside it.

    Without the edges that close a loop, the cycles that its members still form are the loops
    inside it.
    """
    parts: list[tuple[Collection[str], list[WorkflowEdge]]] = [
        ([node.id for node in nodes], all_edges)
    ]
    heads = [node.id for node in nodes if node.type_id in reentrant]
    while parts:
        within, edges = parts.pop()
        for loop in _outermost([head for head in heads if head in within], within, edges):
            yield loop
            rest = [e for e in edges if e.target_node_id != loop.head and _joins(e, loop.members)]
            parts.append((loop.members, rest))


def _outermost(
    heads: list[str], within: Collection[str], edges: list[WorkflowEdge]
) -> Iterator[Loop]:
    """Find the loops of one part of the graph that lie in no other loop."""
    successors: dict[str, list[str]] = {node: [] for node in within}
    predecessors: dict[str, list[str]] = {node: [] for node in within}
    for edge in edges:
        successors[edge.source_node_id].append(edge.target_node_id)
        predecessors[edge.target_node_id].append(edge.source_node_id)
    found: set[str] = set()
    for node in heads:
        if node in found:
            continue
        members = _reach(node, successors) & _reach(node, predecessors)
        found |= members
        if members:
            # Control comes in at the outer head; a cycle that nothing leads into starts at the first.
            own = [head for head in heads if head in members]
            entered = (head for head in own if not members.issuperset(predecessors[head]))
            yield _loop(next(entered, own[0]), frozenset(members), edges)


def _loop(head: str, members: frozenset[str], edges: list[WorkflowEdge]) -> Loop:
    back = tuple(e for e in edges if e.target_node_id == head and e.source_node_id in members)
    return Loop(head, members, back)


def _leaves(
    edges: Iterable[WorkflowEdge],
    loops: Mapping[str, Loop],
    enclosing: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[str, str]]:
    """Name each edge that leaves loops, with the outermost of them. Outer loops come first."""
    for edge in edges:
        for head in enclosing[edge.source_node_id]:
            if edge.target_node_id not in loops[head].members:
                yield edge.id, head
                break


def _joins(edge: WorkflowEdge, members: Collection[str]) -> bool:
    return edge.source_node_id in members and edge.target_node_id in members


def _reach(start: str, steps: Mapping[str, list[str]]) -> set[str]:
    """Every node that can be reached from `start` by at least one step."""
    seen: set[str] = set()
    todo = list(steps[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(steps[node])
    return seen


def cycle(
    nodes: list[WorkflowNode], edges: list[WorkflowEdge], reentrant: Collection[str]
) -> list[str]:
    """Name the nodes of a cycle that no loop head allows, in order; empty when there is none."""
    back = {edge.id for loop in _loops(nodes, edges, reentrant) for edge in loop.back}
    waiting = {node.id: 0 for node in nodes}
    forward = [edge for edge in edges if edge.id not in back]
    targets: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in forward:
        waiting[edge.target_node_id] += 1
        targets[edge.source_node_id].append(edge.target_node_id)
    free = [node for node, count in waiting.items() if not count]
    while free:
        node = free.pop()
        del waiting[node]
        for target in targets[node]:
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    return _walk_back(waiting, forward) if waiting else []


def _walk_back(stuck: Mapping[str, int], edges: list[WorkflowEdge]) -> list[str]:
    """Follow predecessors among the stuck nodes until one repeats: that is a cycle."""
    before = {
        e.target_node_id: e.source_node_id for e in reversed(edges) if e.source_node_id in stuck
    }
    path: dict[str, None] = {}
    node = next(iter(stuck))
    while node not in path:
        path[node] = None
        node = before[node]
    names = list(path)
    return list(reversed(names[names.index(node) :]))
