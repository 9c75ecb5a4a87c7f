"""A workflow definition compiled for planning: successors, predecessors and loops."""

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

MaskMembers: TypeAlias = Callable[[JsonObject, Collection[str], MaskingMode], JsonObject]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: its head, its members, and the back edges that close it."""

    head: str
    members: frozenset[str]
    back: tuple[WorkflowEdge, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The nodes in the order of the definition. `incoming` and `outgoing` have no back edges."""

    definition: WorkflowDefinition
    nodes: Mapping[str, WorkflowNode]
    incoming: Mapping[str, tuple[WorkflowEdge, ...]]
    outgoing: Mapping[str, tuple[WorkflowEdge, ...]]
    loops: Mapping[str, Loop]
    # For a node inside loops: the heads of those loops.
    enclosing: Mapping[str, tuple[str, ...]]
    # For an edge that leaves loops, by its id: the head of the outermost loop that it leaves.
    exits: Mapping[str, str]
    sensitive_variables: frozenset[str]
    sensitive_channels: frozenset[str]
    # The defaults of variables and channels, with sensitive values masked.
    masked_variables: JsonObject
    masked_channels: JsonObject

    @property
    def channels(self) -> Mapping[str, ChannelDeclaration]:
        """Return the declared channels; empty unless the workflow is channel-aware."""
        return self.definition.channels

    @property
    def masking(self) -> MaskingMode:
        """Return the masking mode of this workflow's sensitive values."""
        return _masking(self.definition)

    def sinks(self) -> Iterator[WorkflowNode]:
        """Return the nodes without successors."""
        return (node for node in self.nodes.values() if not self.outgoing[node.id])


def default_variables(definition: WorkflowDefinition) -> JsonObject:
    """Return the unmasked defaults of variables."""
    return {
        v.name: v.default_value
        for v in definition.variables
        if not isinstance(v.default_value, Unset)
    }


def default_channels(definition: WorkflowDefinition) -> JsonObject:
    """Return the unmasked defaults of channels."""
    return {
        n: c.default for n, c in definition.channels.items() if not isinstance(c.default, Unset)
    }


def omit_members(members: JsonObject, names: Collection[str], mode: MaskingMode) -> JsonObject:
    """Mask members by omitting them."""
    if mode == "passthrough":
        return members
    return {name: value for name, value in members.items() if name not in names}


def compile_graph(
    definition: WorkflowDefinition, reentrant: Collection[str], mask: MaskMembers = omit_members
) -> Graph:
    """Compile a checked definition.

    `reentrant` are the type ids that may head a loop. `mask` masks sensitive defaults.
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
        exits=dict(_exits(definition.edges, loops, enclosing)),
        sensitive_variables=variables,
        sensitive_channels=channels,
        masked_variables=mask(default_variables(definition), variables, masking),
        masked_channels=mask(default_channels(definition), channels, masking),
    )


def _masking(definition: WorkflowDefinition) -> MaskingMode:
    mode = definition.metadata.compliance_config.masking_mode
    return "mask" if isinstance(mode, Unset) else mode


def _loops(
    nodes: list[WorkflowNode], all_edges: list[WorkflowEdge], reentrant: Collection[str]
) -> Iterator[Loop]:
    """Yield every loop, an outer loop before its inner loops.

    The inner loops of a loop are the cycles that its members form without its back edges.
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
    """Yield the loops of one part of the graph that are not inside another loop."""
    successors: dict[str, list[str]] = {node: [] for node in within}
    predecessors: dict[str, list[str]] = {node: [] for node in within}
    for edge in edges:
        successors[edge.source_node_id].append(edge.target_node_id)
        predecessors[edge.target_node_id].append(edge.source_node_id)
    found: set[str] = set()
    for node in heads:
        if node in found:
            continue
        members = _reachable(node, successors) & _reachable(node, predecessors)
        found |= members
        if members:
            # The outer head has an edge from outside. Without such an edge, the first head is used.
            own = [head for head in heads if head in members]
            entered = (head for head in own if not members.issuperset(predecessors[head]))
            yield _loop(next(entered, own[0]), frozenset(members), edges)


def _loop(head: str, members: frozenset[str], edges: list[WorkflowEdge]) -> Loop:
    back = tuple(e for e in edges if e.target_node_id == head and e.source_node_id in members)
    return Loop(head, members, back)


def _exits(
    edges: Iterable[WorkflowEdge],
    loops: Mapping[str, Loop],
    enclosing: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[str, str]]:
    """Yield each edge that leaves loops, with the head of the outermost loop that it leaves.

    `enclosing` has outer loops first.
    """
    for edge in edges:
        for head in enclosing[edge.source_node_id]:
            if edge.target_node_id not in loops[head].members:
                yield edge.id, head
                break


def _joins(edge: WorkflowEdge, members: Collection[str]) -> bool:
    return edge.source_node_id in members and edge.target_node_id in members


def _reachable(start: str, steps: Mapping[str, list[str]]) -> set[str]:
    """Return every node that can be reached from `start` in at least one step."""
    seen: set[str] = set()
    todo = list(steps[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(steps[node])
    return seen


def find_cycle(
    nodes: list[WorkflowNode], edges: list[WorkflowEdge], reentrant: Collection[str]
) -> list[str]:
    """Return the nodes of a cycle without a loop head, in order; empty if there is none."""
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
    """Follow predecessors among the stuck nodes until one repeats, and return that cycle."""
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
