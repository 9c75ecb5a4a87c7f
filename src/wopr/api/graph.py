"""The graph of a workflow in Python: its nodes and edges, and their checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError, faults_of
from wopr.api.node_types import (
    NodeKind,
    agent_in,
    inputs_schema,
    known_types,
    node_type_of,
    outputs_schema,
)
from wopr.api.nodes import Edge, Node, port_of, value_faults
from wopr.api.schemas import ANY_SCHEMA, members, required
from wopr.engine.cel.tokens import ExpressionFault, names_read, tokenize
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, JsonObject
from wopr.protocol.errors import WoprError
from wopr.protocol.json_schema.conversion import to_json
from wopr.protocol.suggestions import suggest_name
from wopr.protocol.workflow import (
    ConnectionPort,
    ExpressionPort,
    NodeSettings,
    Position,
    WorkflowEdge,
    WorkflowNode,
)
from wopr.runs.definitions.checks import check_definition

NO_SETTINGS = NodeSettings()
# The distance between two nodes in an editor.
_SPACING = 200


class Graph:
    """Nodes by id, the edges between them, and the node types and agents that they need."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self._types: dict[str, NodeType] = {}

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents of its nodes, each once."""
        found = {node.agent.id: node.agent for node in self.nodes.values() if node.agent}
        return tuple(found.values())

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The types of its nodes, each once."""
        return tuple(self._types.values())

    def add(
        self,
        node_id: str,
        what: NodeKind,
        /,
        *,
        config: object = None,
        settings: NodeSettings = NO_SETTINGS,
        agent: Agent | None = None,
        **inputs: object,
    ) -> Node:
        """Add a node of any type.

        Args:
            node_id: The node's id, unique in the workflow.
            what: The node type: its id, a function declared with `@node`, or the result of an
                adapter.
            config: The node's config, as an object or an instance of its config type.
            settings: Retries, timeout and backoff.
            agent: The agent that the node acts for. An adapter has its own agent.
            **inputs: The inputs: values, inputs of the run, outputs of other nodes, or
                `expr(...)`.

        Returns:
            The node, for edges and for inputs of other nodes.

        Raises:
            WorkflowError: The id is already used, or the node type does not exist.

        Example:
            >>> from wopr import NodeSettings, Workflow
            >>> flow = Workflow("order")
            >>> wait = flow.add("wait", "core.delay", config={"delayMs": 10})
            >>> greet = flow.add("greet", "core.identity", settings=NodeSettings(timeout=5000), n=1)
            >>> _ = wait >> greet >> flow.end(n=greet["n"])
        """
        return self.node(node_id, what, config, inputs, settings, agent)

    def node(
        self,
        node_id: str,
        what: NodeKind,
        config: object,
        inputs: Mapping[str, object],
        settings: NodeSettings = NO_SETTINGS,
        agent: Agent | None = None,
    ) -> Node:
        """Add a node with its inputs as a mapping, for input names that are not keywords.

        Args:
            node_id: The node's id, unique in the workflow.
            what: The node type, as for `add`.
            config: The node's config.
            inputs: The inputs by name.
            settings: Retries, timeout and backoff.
            agent: The agent that the node acts for.

        Returns:
            The node.

        Raises:
            WorkflowError: The id is already used, or the node type does not exist.

        Example:
            >>> from wopr import Workflow
            >>> flow = Workflow("order")
            >>> store = flow.node("store", "core.identity", None, {"order id": "A-17"})
        """
        node_type = node_type_of(what, f"node {node_id}")
        agent = agent or agent_in(what)
        wire = WorkflowNode(
            id=node_id,
            type_id=node_type.type_id,
            name=node_id,
            position=self._position(),
            config={} if config is None else to_json(config),
            inputs={key: port_of(value) for key, value in inputs.items()},
            settings=checked_settings(node_id, settings),
            agent=UNSET if agent is None else AgentRef(agent_id=agent.id),
        )
        schema = inputs_schema(node_type)
        return self._put(
            wire,
            node_type,
            agent=agent,
            faults=list(value_faults(inputs, schema, required(schema))),
            outputs=outputs_schema(node_type),
        )

    def _put(
        self,
        wire: WorkflowNode,
        node_type: NodeType,
        *,
        outputs: JsonObject = ANY_SCHEMA,
        agent: Agent | None = None,
        faults: Sequence[str] = (),
    ) -> Node:
        """Add a complete node. Raises `WorkflowError` if the id is already used."""
        if wire.id in self.nodes:
            raise WorkflowError(f"workflow {self.id}", [f"there already is a node {wire.id!r}"])
        node = Node(self.edges, wire, outputs=outputs, agent=agent, faults=faults)
        self.nodes[wire.id] = node
        self._types[node_type.type_id] = node_type
        return node

    def _position(self) -> Position:
        """Return the position of the next node in an editor."""
        return Position(x=_SPACING * len(self.nodes), y=0)


def checked_settings(node_id: str, settings: object) -> NodeSettings:
    """Return a node's settings. Raises `WorkflowError` if they are not `NodeSettings`."""
    if isinstance(settings, NodeSettings):
        return settings
    fault = (
        f"settings must be NodeSettings(timeout=..., max_retries=..., backoff=...), "
        f"not {type(settings).__name__}"
    )
    raise WorkflowError(f"node {node_id}", [fault])


def wire_edges(edges: Sequence[Edge]) -> list[WorkflowEdge]:
    """Return the edges with ids derived from their sources and targets."""
    seen: Counter[str] = Counter()
    documents: list[WorkflowEdge] = []
    for edge in edges:
        name = f"{edge.source.id}-{edge.target.id}"
        seen[name] += 1
        documents.append(edge.wire(name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return documents


def graph_faults(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> Iterator[str]:
    """Yield the errors of nodes and edges."""
    before = _predecessors(nodes, edges)
    for node in nodes.values():
        yield from (f"node {node.id}: {fault}" for fault in node.faults)
        yield from _input_faults(node, nodes, before[node.id])
    for edge in edges:
        if edge.condition is not None:
            where = f"edge {edge.source.id} >> {edge.target.id}"
            yield from (f"{where}: {fault}" for fault in _condition_faults(edge, nodes))


def host_faults(document: JsonObject, types: Iterable[NodeType]) -> list[str]:
    """Return the errors that the host would find, with node ids."""
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
    """Return the nodes that come before each node on any path."""
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


def _input_faults(node: Node, nodes: Mapping[str, Node], before: set[str]) -> Iterator[str]:
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
    for name in _members_read(condition, "outputs"):
        if name not in known:
            yield f"node {edge.source.id!r} has no output {name!r}: {suggest_name(name, known)}"


def _unknown_nodes(expression: str, nodes: Mapping[str, Node]) -> Iterator[str]:
    for name in _members_read(expression, "nodes"):
        if name not in nodes:
            yield f"there is no node {name!r}: {suggest_name(name, nodes)}"


def _members_read(expression: str, root: str) -> list[str]:
    """Return the members of a root that an expression reads. The host checks the syntax."""
    try:
        return sorted(names_read(tokenize(expression)).get(root) or ())
    except ExpressionFault:
        return []
