"""Turns nodes and edges into a definition, and finds what cannot work before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wopr.api.nodes import Edge, Node
from wopr.api.refusals import faults_of
from wopr.api.shapes import members
from wopr.api.types import known_types
from wopr.engine.expression_tokens import ExpressionFault, references, scan
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.protocol.names import not_there
from wopr.protocol.workflow import ConnectionPort, ExpressionPort, WorkflowEdge
from wopr.runtime.registration import check_definition


def wire_edges(edges: Sequence[Edge]) -> list[WorkflowEdge]:
    """The edges with ids that say from where to where."""
    seen: Counter[str] = Counter()
    wired: list[WorkflowEdge] = []
    for edge in edges:
        name = f"{edge.source.id}-{edge.target.id}"
        seen[name] += 1
        wired.append(edge.wire(name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return wired


def graph_faults(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> Iterator[str]:
    """Name every fault of nodes, edges and what they read of each other."""
    before = _predecessors(nodes, edges)
    for node in nodes.values():
        yield from (f"node {node.id}: {fault}" for fault in node.faults)
        yield from _reading_faults(node, nodes, before[node.id])
    for edge in edges:
        if edge.condition is not None:
            where = f"edge {edge.source.id} >> {edge.target.id}"
            yield from (f"{where}: {fault}" for fault in _condition_faults(edge, nodes))


def host_faults(document: JsonObject, types: Iterable[NodeType]) -> list[str]:
    """What the host itself would refuse, with nodes by their names."""
    registry = NodeRegistry(known_types())
    for node_type in types:
        if registry.get(node_type.type_id) is None:
            registry.add(node_type)
    try:
        check_definition(document, registry)
    except WoprError as refusal:
        return faults_of(refusal, [str(node["id"]) for node in document["nodes"]])
    return []


def _predecessors(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> dict[str, set[str]]:
    """The nodes that come before each node on some way."""
    direct: dict[str, set[str]] = {name: set() for name in nodes}
    for edge in edges:
        direct[edge.target.id].add(edge.source.id)
    found: dict[str, set[str]] = {}
    for name in nodes:
        reached: set[str] = set()
        pending = list(direct[name])
        while pending:
            source = pending.pop()
            if source not in reached:
                reached.add(source)
                pending.extend(direct[source])
        found[name] = reached
    return found


def _reading_faults(node: Node, nodes: Mapping[str, Node], before: set[str]) -> Iterator[str]:
    for name, port in node.wire.inputs.items():
        if isinstance(port, ConnectionPort):
            if nodes.get(port.node_id) is None:
                yield f"node {node.id}: input {name!r} reads {port.node_id!r} of another workflow"
            elif port.node_id not in before:
                yield (
                    f"node {node.id}: input {name!r} reads node {port.node_id!r}, which does not "
                    f"come before it: write {port.node_id} >> {node.id}"
                )
        if isinstance(port, ExpressionPort):
            unknown = _unknown_nodes(port.expression, nodes)
            yield from (f"node {node.id}: input {name!r}: {fault}" for fault in unknown)


def _condition_faults(edge: Edge, nodes: Mapping[str, Node]) -> Iterator[str]:
    condition = edge.condition or ""
    yield from _unknown_nodes(condition, nodes)
    known = members(edge.source.outputs)
    if known is None:
        return
    for name in _read(condition, "outputs"):
        if name not in known:
            yield f"node {edge.source.id!r} has no output {name!r}: {not_there(name, known)}"


def _unknown_nodes(expression: str, nodes: Mapping[str, Node]) -> Iterator[str]:
    for name in _read(expression, "nodes"):
        if name not in nodes:
            yield f"there is no node {name!r}: {not_there(name, nodes)}"


def _read(expression: str, root: str) -> list[str]:
    """The members of a root that an expression reads; what cannot be read the host refuses."""
    try:
        return sorted(references(scan(expression)).get(root) or ())
    except ExpressionFault:
        return []
