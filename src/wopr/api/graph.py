"""The graph of a workflow that is being built: its nodes and edges, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.nodes import Edge, Node
from wopr.api.shapes import ANYTHING, required
from wopr.api.types import NodeKind, agent_in, inputs_shape, node_type_of, outputs_shape
from wopr.api.values import port_of, value_faults
from wopr.nodes.registry import NodeType
from wopr.nodes.typed import to_json
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, JsonObject
from wopr.protocol.workflow import NodeSettings, Position, WorkflowNode

_APART = 200
NO_SETTINGS = NodeSettings()


class Graph:
    """Nodes by their ids, the edges between them, and the types and agents that they need."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self._types: dict[str, NodeType] = {}

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents that its nodes work for, each once."""
        found = {node.agent.id: node.agent for node in self.nodes.values() if node.agent}
        return tuple(found.values())

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The types of its nodes."""
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
        """Add a node of any type, by its id or as a function declared with `@node`.

        Inputs are values, inputs of the run, outputs of other nodes, or `expr(...)`. With an
        `agent` the node acts in its name; something wrapped by an adapter brings its own.
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
        """The same with the inputs as one mapping, for names that are no keywords."""
        node_type = node_type_of(what, f"node {node_id}")
        agent = agent or agent_in(what)
        wire = WorkflowNode(
            id=node_id,
            type_id=node_type.type_id,
            name=node_id,
            position=self.position(),
            config=_plain(config),
            inputs={key: port_of(value) for key, value in inputs.items()},
            settings=checked_settings(node_id, settings),
            agent=UNSET if agent is None else AgentRef(agent_id=agent.id),
        )
        return self.put(
            wire,
            node_type,
            agent=agent,
            faults=_input_faults(node_type, inputs),
            outputs=outputs_shape(node_type),
        )

    def put(
        self,
        wire: WorkflowNode,
        node_type: NodeType,
        *,
        outputs: JsonObject = ANYTHING,
        agent: Agent | None = None,
        faults: Sequence[str] = (),
    ) -> Node:
        """Put a finished node into the graph; an id that is taken is refused at once."""
        if wire.id in self.nodes:
            raise WorkflowError(f"workflow {self.id}", [f"node {wire.id!r} is there already"])
        node = Node(self.edges, wire, outputs=outputs, agent=agent, faults=faults)
        self.nodes[wire.id] = node
        self._types[node_type.type_id] = node_type
        return node

    def position(self) -> Position:
        """Where an editor draws the next node."""
        return Position(x=_APART * len(self.nodes), y=0)


def _input_faults(node_type: NodeType, inputs: Mapping[str, object]) -> list[str]:
    shape = inputs_shape(node_type)
    return list(value_faults(inputs, shape, required(shape)))


def checked_settings(node_id: str, settings: object) -> NodeSettings:
    """Return a node's settings. Raises `WorkflowError` for anything but `NodeSettings`."""
    if isinstance(settings, NodeSettings):
        return settings
    fault = (
        f"settings must be NodeSettings(timeout=..., max_retries=..., backoff=...), "
        f"not {type(settings).__name__}"
    )
    raise WorkflowError(f"node {node_id}", [fault])


def _plain(config: object) -> JsonObject:
    plain: JsonObject = {} if config is None else to_json(config)
    return plain
