"""When a node may start: the five trigger rules, applied to its incoming edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from wopr.engine.cel.expressions import MAX_INLINE_COST, ExpressionFault, condition_holds
from wopr.engine.fold.agents import DISPATCH
from wopr.engine.state import ENDED, RunState
from wopr.protocol.documents import Json, Unset
from wopr.protocol.workflow import EdgeCondition, TriggerRule, WorkflowEdge

EdgeState: TypeAlias = Literal["pending", "success", "skipped", "failed"]
_Rule: TypeAlias = Callable[[list[EdgeState]], "Readiness"]
# A failure with an edge of one of these rules is handled by the workflow.
TOLERANT_RULES: frozenset[str] = frozenset({"any_failed", "all_complete", "any_success"})
# Conditions up to this cost are always evaluated in this process.
_SMALL_COST: Final = 100
# The total cost of larger conditions that one plan evaluates in this process, about 50 ms. Others
# are evaluated by subprocesses.
_MAX_INLINE_TOTAL: Final = 500_000
# The total cost of the conditions on the edges to one node that subprocesses evaluate.
MAX_CONDITION_COST: Final = 100_000_000


class Readiness(Enum):
    """Whether a node can start now, must be skipped, or must wait."""

    READY = "ready"
    SKIP = "skip"
    WAIT = "wait"


def expression_scope(state: RunState) -> dict[str, Json]:
    """Return the names that expressions of a workflow can read."""
    return {
        "inputs": state.inputs,
        "variables": state.variables,
        "channels": state.channels,
        "nodes": {n: node.outputs for n, node in state.nodes.items() if node.outputs is not None},
    }


class EdgeStates:
    """The states of the edges of a run. Each is computed once for one state of the run."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._graph = state.graph
        self._open = frozenset(n for n, node in state.nodes.items() if node.status not in ENDED)
        self._scope: dict[str, Json] | None = None
        self._inline_cost = 0
        self._subprocess_costs: dict[str, int] = {}
        self._conditions: dict[str, bool | ExpressionFault] = {}
        self._active_back_edges: dict[str, bool] = {}
        self._ended_loops: dict[str, bool] = {}

    def readiness(self, node_id: str, completing: Collection[str] = ()) -> Readiness:
        """Apply the trigger rules. Edges with the same rule form a group, and all must agree.

        The nodes `completing` count as completed. The state of an edge from such a node is known
        only if the edge has no condition and leaves no loop.
        """
        edges = self._graph.incoming[node_id]
        if not edges:
            return Readiness.READY
        if all(
            edge.source_node_id in self._open and edge.source_node_id not in completing
            for edge in edges
        ):
            # No rule decides if all edges are pending.
            return Readiness.WAIT
        groups: dict[TriggerRule, list[EdgeState]] = {}
        for edge in edges:
            state = (
                self._state_if_completed(edge)
                if edge.source_node_id in completing
                else self.edge_state(edge)
            )
            groups.setdefault(edge.trigger_rule, []).append(state)
        found = [_RULES[rule](values) for rule, values in groups.items()]
        if Readiness.SKIP in found:
            return Readiness.SKIP
        return Readiness.WAIT if Readiness.WAIT in found else Readiness.READY

    def edge_state(self, edge: WorkflowEdge) -> EdgeState:
        """Return the state of an edge.

        An edge that leaves a loop is pending until the loop has ended. The inner loops of a loop
        end with it. Raises `ExpressionFault` if the condition of the edge cannot be evaluated.
        """
        head = self._graph.exits.get(edge.id)
        if head is not None and not self._has_loop_ended(head):
            return "pending"
        return self._state_in_iteration(edge)

    def starts_iteration(self, head: str) -> bool:
        """Return whether the current iteration of a loop has ended and a back edge is active."""
        return self._iteration_ended(head) and self._has_active_back_edge(head)

    def _has_loop_ended(self, head: str) -> bool:
        """Return whether no member of the loop runs or can start, and no back edge is active."""
        if head not in self._ended_loops:
            self._ended_loops[head] = self._iteration_ended(
                head
            ) and not self._has_active_back_edge(head)
        return self._ended_loops[head]

    def _iteration_ended(self, head: str) -> bool:
        members = self._graph.loops[head].members
        if not members.isdisjoint(self._open):
            return False
        inner = (other for other in self._graph.loops if other in members and other != head)
        return not any(self._has_active_back_edge(other) for other in inner)

    def _has_active_back_edge(self, head: str) -> bool:
        if head not in self._active_back_edges:
            self._active_back_edges[head] = any(
                self._state_in_iteration(edge) == "success" and not self._ends_loop(edge)
                for edge in self._graph.loops[head].back
            )
        return self._active_back_edges[head]

    def _ends_loop(self, edge: WorkflowEdge) -> bool:
        """Return whether a dispatch executed `terminate`, which ends the supervisor's loop."""
        source = self._state.nodes[edge.source_node_id]
        is_dispatch = self._graph.nodes[edge.source_node_id].type_id == DISPATCH
        return is_dispatch and (source.outputs or {}).get("decision") == "terminate"

    def _state_if_completed(self, edge: WorkflowEdge) -> EdgeState:
        """Return the state of an edge whose source completes with unknown outputs."""
        is_decided = isinstance(edge.condition, Unset) and edge.id not in self._graph.exits
        return "success" if is_decided else "pending"

    def _state_in_iteration(self, edge: WorkflowEdge) -> EdgeState:
        source = self._state.nodes[edge.source_node_id]
        if source.status not in ENDED:
            return "pending"
        if source.status == "completed":
            return "success" if self._condition_holds(edge) else "skipped"
        if source.status == "failed":
            is_handled = edge.trigger_rule in TOLERANT_RULES
            return "failed" if not is_handled or self._condition_holds(edge) else "skipped"
        return "skipped"

    def _condition_holds(self, edge: WorkflowEdge) -> bool:
        if isinstance(edge.condition, Unset):
            return True
        if edge.id not in self._conditions:
            self._conditions[edge.id] = self._evaluate(edge, edge.condition)
        decided = self._conditions[edge.id]
        if isinstance(decided, ExpressionFault):
            raise ExpressionFault(f"the condition of edge {edge.id!r}: {decided}") from decided
        return decided

    def _evaluate(self, edge: WorkflowEdge, condition: EdgeCondition) -> bool | ExpressionFault:
        source = self._state.nodes[edge.source_node_id]
        outputs = source.outputs or {}
        if self._scope is None:
            self._scope = expression_scope(self._state)
        known = self._scope | {
            "outputs": outputs,
            "output": outputs,
            "status": source.status,
            "error": msgspec.to_builtins(source.error) if source.error else {},
        }
        try:
            return condition_holds(condition, known, partial(self._is_large, edge.target_node_id))
        except ExpressionFault as fault:
            return fault

    def _is_large(self, node_id: str, cost: int) -> bool:
        """Add the cost of a condition, and return whether a subprocess must evaluate it."""
        if cost <= _SMALL_COST or (
            cost <= MAX_INLINE_COST and self._inline_cost + cost <= _MAX_INLINE_TOTAL
        ):
            self._inline_cost += cost
            return False
        total = self._subprocess_costs.get(node_id, 0) + cost
        self._subprocess_costs[node_id] = total
        if total > MAX_CONDITION_COST:
            raise ExpressionFault(
                f"is refused: the large conditions on edges to node {node_id!r} cost {total} "
                f"together, and at most {MAX_CONDITION_COST} is allowed"
            )
        return True


def _all_success(values: list[EdgeState]) -> Readiness:
    if "failed" in values or "skipped" in values:
        return Readiness.SKIP
    return Readiness.WAIT if "pending" in values else Readiness.READY


def _any_success(values: list[EdgeState]) -> Readiness:
    if "success" in values:
        return Readiness.READY
    return Readiness.WAIT if "pending" in values else Readiness.SKIP


def _any_failed(values: list[EdgeState]) -> Readiness:
    if "failed" in values:
        return Readiness.READY
    return Readiness.WAIT if "pending" in values else Readiness.SKIP


def _all_complete(values: list[EdgeState]) -> Readiness:
    if "pending" in values:
        return Readiness.WAIT
    # If no edge is active, the skip propagates downstream.
    return Readiness.SKIP if set(values) == {"skipped"} else Readiness.READY


def _none_failed(values: list[EdgeState]) -> Readiness:
    return Readiness.SKIP if "failed" in values else _all_complete(values)


_RULES: Mapping[TriggerRule, _Rule] = {
    "all_success": _all_success,
    "any_success": _any_success,
    "any_failed": _any_failed,
    "all_complete": _all_complete,
    "none_failed": _none_failed,
}
