"""Nodes of a workflow in Python, the sources of their inputs, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.schemas import ANY_SCHEMA, fits, json_types_text, members, schema_for
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.json_schema.conversion import to_json
from wopr.protocol.suggestions import suggest_name
from wopr.protocol.workflow import (
    ConnectionPort,
    EdgeCondition,
    ExpressionPort,
    PortValue,
    StaticPort,
    TriggerRule,
    VariablePort,
    WorkflowEdge,
    WorkflowNode,
)

# The right side of `>>`: a node, or several nodes that then start at the same time.
Targets: TypeAlias = "Node | Sequence[Node]"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the run, or a member of one. The run's inputs are variables."""

    name: str
    schema: JsonObject

    def __getitem__(self, key: str) -> Variable:
        """Return a member of an object."""
        return Variable(f"{self.name}.{key}", _member(self.name, self.schema, key))

    def port(self) -> PortValue:
        """Return the source as a port of the protocol."""
        return VariablePort(variable_name=self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An output of a node, or a member of one."""

    node: Node
    key: str
    schema: JsonObject

    def __getitem__(self, key: str) -> Output:
        """Return a member of an object."""
        what = f"output {self.key} of node {self.node.id}"
        return Output(self.node, f"{self.key}.{key}", _member(what, self.schema, key))

    def port(self) -> PortValue:
        """Return the source as a port of the protocol."""
        return ConnectionPort(node_id=self.node.id, output_key=self.key)


@dataclass(frozen=True, slots=True)
class Expression:
    """A value that is computed when the node starts; see `expr`."""

    text: str
    schema: JsonObject

    def port(self) -> PortValue:
        """Return the source as a port of the protocol."""
        return ExpressionPort(expression=self.text)


def expr(text: str, kind: Any = Any) -> Expression:
    """Compute an input of a node with a CEL expression when the node starts.

    Args:
        text: The expression. It can read `inputs`, `variables` and `nodes`.
        kind: The Python type of the value, for the checks of `Workflow.build`.

    Returns:
        A value that any node accepts as an input.

    Raises:
        TypeError: `kind` has no JSON Schema.

    Example:
        >>> from wopr import expr
        >>> expr("nodes.draft.text + inputs.signature", str).text
        'nodes.draft.text + inputs.signature'
    """
    return Expression(text, schema_for(kind))


class Inputs:
    """The inputs of a run by name: `flow.inputs.customer` or `flow.inputs["customer"]`."""

    def __init__(self, what: str, schema: JsonObject) -> None:
        self._what = what
        self._schema = schema

    def __getattr__(self, name: str) -> Variable:
        """Return an input by its name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Variable:
        """Return an input by its name."""
        return Variable(name, _member(self._what, self._schema, name))


def port_of(value: object) -> PortValue:
    """Return the port of a source, or of a value that JSON can express."""
    if isinstance(value, Variable | Output | Expression):
        return value.port()
    return StaticPort(value=to_json(value))


def value_faults(
    values: Mapping[str, object], schema: JsonObject, required: list[str]
) -> Iterator[str]:
    """Yield an error for every input that is missing, unknown or of the wrong type."""
    known = members(schema)
    for name in required:
        if name not in values:
            yield f"input {name!r} is missing"
    for name, value in values.items():
        if known is not None and name not in known:
            yield f"input {name!r} does not exist: {suggest_name(name, known)}"
        elif known is not None:
            yield from _type_faults(name, value, known[name])


def _type_faults(name: str, value: object, wanted: JsonObject) -> Iterator[str]:
    schema: JsonObject = (
        value.schema
        if isinstance(value, Variable | Output | Expression)
        else {"const": to_json(value)}
    )
    if not fits(schema, wanted):
        yield f"input {name!r} must be {json_types_text(wanted)}, not {json_types_text(schema)}"


def _member(what: str, schema: JsonObject, key: str) -> JsonObject:
    known = members(schema)
    if known is None:
        return ANY_SCHEMA
    if key not in known:
        raise WorkflowError(what, [f"there is no {key!r}: {suggest_name(key, known)}"])
    return known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An edge without an id."""

    source: Node
    target: Node
    condition: str | None = None
    rule: TriggerRule = "all_success"

    def wire(self, edge_id: str) -> WorkflowEdge:
        """Return the edge as a document of the protocol."""
        condition: EdgeCondition | Unset = UNSET
        if self.condition is not None:
            condition = EdgeCondition(expression=self.condition)
        return WorkflowEdge(
            id=edge_id,
            source_node_id=self.source.id,
            target_node_id=self.target.id,
            condition=condition,
            trigger_rule=self.rule,
        )


class Node:
    """A node of a workflow. `Workflow.add`, `Workflow.agent` and similar methods return it.

    `node["key"]` is an output of the node, as an input for another node. `node >> other` is an
    edge.

    Attributes:
        id: The node's id.
        agent: The agent that the node acts for, or None.

    Example:
        >>> from wopr import Workflow
        >>> flow = Workflow("hello")
        >>> wait = flow.add("wait", "core.delay", config={"delayMs": 10})
        >>> end = flow.end()
        >>> _ = wait >> end
        >>> [edge.id for edge in flow.build().edges]
        ['wait-end']
    """

    def __init__(
        self,
        edges: list[Edge],
        wire: WorkflowNode,
        *,
        outputs: JsonObject = ANY_SCHEMA,
        agent: Agent | None = None,
        faults: Sequence[str] = (),
    ) -> None:
        self.id = wire.id
        self.wire = wire
        self.agent = agent
        self.faults = tuple(faults)
        self.outputs = outputs
        self._edges = edges

    def __repr__(self) -> str:
        return f"<Node {self.id}: {self.wire.type_id}>"

    def __getitem__(self, key: str) -> Output:
        """Return an output of the node, as an input for another node.

        Args:
            key: The name of the output.

        Returns:
            The output. `node["result"]["team"]` is a member of it.

        Raises:
            WorkflowError: The node has no output of this name.
        """
        known = members(self.outputs)
        if known is not None and key not in known:
            raise WorkflowError(
                f"node {self.id}", [f"there is no output {key!r}: {suggest_name(key, known)}"]
            )
        return Output(self, key, ANY_SCHEMA if known is None else known[key])

    def __rshift__(self, targets: Targets) -> OutgoingEdges:
        """Start `targets` after this node has succeeded: `a >> b >> [c, d]`.

        Args:
            targets: A node, or a list of nodes, which then start at the same time.

        Returns:
            The edges that leave the targets, for another `>>`.

        Raises:
            WorkflowError: A target is not a node, or belongs to another workflow.
        """
        return OutgoingEdges((self,)) >> targets

    def then(self, *targets: Node) -> OutgoingEdges:
        """Start `targets` after this node has succeeded, like `>>`.

        Some linters refuse `>>` as a statement without effect.

        Args:
            *targets: Nodes that start after this node.

        Returns:
            The edges that leave the targets, for another `then`.

        Raises:
            WorkflowError: A target is not a node, or belongs to another workflow.
        """
        return OutgoingEdges((self,)) >> targets

    def __rrshift__(self, sources: Sequence[Node]) -> OutgoingEdges:
        """Start this node after all of these have succeeded: `[a, b] >> c`.

        Args:
            sources: The nodes to wait for.

        Returns:
            The edges that leave this node, for another `>>`.

        Raises:
            WorkflowError: A source belongs to another workflow.
        """
        return OutgoingEdges(tuple(sources)) >> self

    def when(self, condition: str) -> OutgoingEdges:
        """Follow an edge only if a condition is true: `a.when("outputs.ok") >> b`.

        Args:
            condition: A CEL expression. It can read `outputs`, `status` and `error` of this node,
                and `nodes`, `variables`, `inputs` and `channels` of the run.

        Returns:
            The edges, for `>>` or `then`.

        Example:
            >>> from wopr import Workflow
            >>> flow = Workflow("order")
            >>> review = flow.approval("review", "Pay this?")
            >>> _ = review.when("outputs.approved") >> flow.end()
        """
        return OutgoingEdges((self,), condition=condition)

    @property
    def on_failure(self) -> OutgoingEdges:
        """Edges to follow if this node fails. Then the run does not fail."""
        return OutgoingEdges((self,), rule="any_failed")

    @property
    def always(self) -> OutgoingEdges:
        """Edges to follow when this node has ended, whether it succeeded or failed."""
        return OutgoingEdges((self,), rule="all_complete")

    def _connect(self, edge: Edge) -> None:
        """Add an edge that leaves this node."""
        if edge.target._edges is not self._edges:
            raise WorkflowError(
                f"edge {self.id} >> {edge.target.id}",
                [f"node {edge.target.id!r} belongs to another workflow"],
            )
        self._edges.append(edge)


@dataclass(frozen=True, slots=True)
class OutgoingEdges:
    """Edges that leave some nodes. `>>` or `then` gives them their targets."""

    sources: tuple[Node, ...]
    condition: str | None = None
    rule: TriggerRule = "all_success"

    def __rshift__(self, targets: Targets) -> OutgoingEdges:
        """Add the edges. Returns the edges that leave the targets, so `a >> b >> c` works."""
        found = self._checked(targets)
        for source in self.sources:
            for target in found:
                edge = Edge(source=source, target=target, condition=self.condition, rule=self.rule)
                source._connect(edge)  # pyright: ignore[reportPrivateUsage]  # the same concept
        return OutgoingEdges(tuple(found))

    def then(self, *targets: Node) -> OutgoingEdges:
        """Add the edges, like `>>`."""
        return self >> targets

    def _checked(self, targets: object) -> list[Node]:
        """Return the targets as a list. Raises `WorkflowError` for a target that is not a node."""
        found = [targets]
        if isinstance(targets, list | tuple):
            found = list(cast("Sequence[object]", targets))
        for each in found:
            if not isinstance(each, Node):
                sources = ", ".join(source.id for source in self.sources)
                fault = f"{each!r} is not a node: use a node from flow.add, flow.agent or flow.end"
                raise WorkflowError(f"edge from {sources}", [fault])
        return cast("list[Node]", found)


def any_of(*sources: Node) -> OutgoingEdges:
    """Follow an edge as soon as one of several nodes has succeeded.

    Args:
        *sources: The nodes. One of them must succeed.

    Returns:
        The edges, for `>>` or `then`.

    Example:
        >>> from wopr import Workflow, any_of
        >>> flow = Workflow("race")
        >>> fast = flow.add("fast", "core.delay", config={"delayMs": 10})
        >>> slow = flow.add("slow", "core.delay", config={"delayMs": 20})
        >>> _ = any_of(fast, slow) >> flow.end()
        >>> [edge.trigger_rule for edge in flow.build().edges]
        ['any_success', 'any_success']
    """
    return OutgoingEdges(sources, rule="any_success")
