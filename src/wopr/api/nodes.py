"""Nodes of a workflow that is being built, and the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from wopr.api.errors import WorkflowError
from wopr.api.shapes import ANYTHING, members
from wopr.api.values import Output
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.names import not_there
from wopr.protocol.workflow import EdgeCondition, TriggerRule, WorkflowEdge, WorkflowNode

if TYPE_CHECKING:
    from wopr.api.agent import Agent

# What `>>` takes on its right: a node, or several that then start at the same time.
Targets: TypeAlias = "Node | Sequence[Node]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An edge before it has an id."""

    source: Node
    target: Node
    condition: str | None = None
    rule: TriggerRule = "all_success"

    def wire(self, edge_id: str) -> WorkflowEdge:
        """The edge as the protocol writes it."""
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
    """A node of one workflow: `node["key"]` is an output, `node >> other` an edge."""

    def __init__(
        self,
        edges: list[Edge],
        wire: WorkflowNode,
        *,
        outputs: JsonObject = ANYTHING,
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
        """An output of the node, by its name."""
        known = members(self.outputs)
        if known is not None and key not in known:
            raise WorkflowError(
                f"node {self.id}", [f"there is no output {key!r}: {not_there(key, known)}"]
            )
        return Output(self, key, ANYTHING if known is None else known[key])

    def __rshift__(self, targets: Targets) -> Way:
        """Let `targets` start after this node has succeeded."""
        return Way((self,)) >> targets

    def then(self, *targets: Node) -> Way:
        """The same as `>>`, for checkers that want no expression to stand alone."""
        return Way((self,)) >> targets

    def __rrshift__(self, sources: Sequence[Node]) -> Way:
        """Start after all of these have succeeded: `[a, b] >> c`."""
        return Way(tuple(sources)) >> self

    def when(self, condition: str) -> Way:
        """Go on only where a CEL expression holds: `a.when("outputs.ok") >> b`.

        It sees `outputs`, `status` and `error` of this node, and `nodes`, `variables`, `inputs`
        and `channels` of the run.
        """
        return Way((self,), condition=condition)

    @property
    def on_failure(self) -> Way:
        """Go on where this node failed, which then does not fail the run."""
        return Way((self,), rule="any_failed")

    @property
    def always(self) -> Way:
        """Go on once this node has ended, however it did."""
        return Way((self,), rule="all_complete")

    def connect(self, edge: Edge) -> None:
        """Add an edge that leaves this node."""
        if edge.target.belongs_to(self._edges):
            self._edges.append(edge)
        else:
            raise WorkflowError(
                f"edge {self.id} >> {edge.target.id}",
                [f"node {edge.target.id!r} belongs to another workflow"],
            )

    def belongs_to(self, edges: list[Edge]) -> bool:
        """Tell whether these are the edges of this node's own workflow."""
        return self._edges is edges


@dataclass(frozen=True, slots=True)
class Way:
    """A way out of some nodes that `>>` leads to others."""

    sources: tuple[Node, ...]
    condition: str | None = None
    rule: TriggerRule = "all_success"

    def __rshift__(self, targets: Targets) -> Way:
        """Add the edges; the answer is the way on from the targets, so `a >> b >> c` works."""
        found = self._checked(targets)
        for source in self.sources:
            for target in found:
                source.connect(
                    Edge(source=source, target=target, condition=self.condition, rule=self.rule)
                )
        return Way(tuple(found))

    def then(self, *targets: Node) -> Way:
        """The same as `>>`, for checkers that want no expression to stand alone."""
        return self >> targets

    def _checked(self, targets: object) -> list[Node]:
        """The targets as a list; what is no node is refused by its edge."""
        found = [targets]
        if isinstance(targets, list | tuple):
            found = list(cast("Sequence[object]", targets))
        for each in found:
            if not isinstance(each, Node):
                sources = ", ".join(source.id for source in self.sources)
                fault = f"{each!r} is no node: give what flow.add, flow.agent or flow.end returned"
                raise WorkflowError(f"edge from {sources}", [fault])
        return cast("list[Node]", found)


def any_of(*sources: Node) -> Way:
    """Go on as soon as one of these has succeeded: `any_of(a, b) >> c`."""
    return Way(sources, rule="any_success")
