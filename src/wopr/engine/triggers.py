"""When a node may start: the five trigger rules over what its incoming edges carry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from wopr.engine.expressions import EVALUATED_HERE, ExpressionFault, holds
from wopr.engine.fold_agents import DISPATCH
from wopr.engine.state import ENDED, RunState
from wopr.protocol.documents import Json, Unset
from wopr.protocol.workflow import EdgeCondition, TriggerRule, WorkflowEdge

Carried: TypeAlias = Literal["pending", "success", "skipped", "failed"]
_Rule: TypeAlias = Callable[[list[Carried]], "Verdict"]
# A failure that one of these rules listens to is handled by the workflow itself.
TOLERANT: frozenset[str] = frozenset({"any_failed", "all_complete", "any_success"})
# What all conditions of one plan but the smallest may cost in this process: some 50 ms. The others
# are decided by subprocesses, and those on the edges to one node may cost this much together.
_SMALL: Final = 100
_MOST_HERE: Final = 500_000
MAX_CONDITION_COST: Final = 100_000_000


class Verdict(Enum):
    """Whether a node may start now, must be skipped, or has to wait."""

    READY = "ready"
    DEAD = "dead"
    WAIT = "wait"


def scope(state: RunState) -> dict[str, Json]:
    """What expressions of a workflow can see."""
    return {
        "inputs": state.inputs,
        "variables": state.variables,
        "channels": state.channels,
        "nodes": {n: node.outputs for n, node in state.nodes.items() if node.outputs is not None},
    }


class Traffic:
    """What the edges of a run carry in one state. What several nodes ask is worked out once."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._graph = state.graph
        self._open = frozenset(n for n, node in state.nodes.items() if node.status not in ENDED)
        self._scope: dict[str, Json] | None = None
        self._cost_here = 0
        self._cost_elsewhere: dict[str, int] = {}
        self._conditions: dict[str, bool | ExpressionFault] = {}
        self._returning: dict[str, bool] = {}
        self._settled: dict[str, bool] = {}

    def verdict(self, node_id: str, completing: Collection[str] = ()) -> Verdict:
        """Apply the trigger rules. Edges with the same rule form a group, and every group must agree.

        The nodes `completing` are taken as completed. What their edges carry is known only where no
        condition and no loop decides it.
        """
        edges = self._graph.incoming[node_id]
        if not edges:
            return Verdict.READY
        if all(
            edge.source_node_id in self._open and edge.source_node_id not in completing
            for edge in edges
        ):
            # No rule decides on pending edges alone.
            return Verdict.WAIT
        groups: dict[TriggerRule, list[Carried]] = {}
        for edge in edges:
            carries = (
                self._carried_at_least(edge)
                if edge.source_node_id in completing
                else self.carried(edge)
            )
            groups.setdefault(edge.trigger_rule, []).append(carries)
        verdicts = [_RULES[rule](values) for rule, values in groups.items()]
        if Verdict.DEAD in verdicts:
            return Verdict.DEAD
        return Verdict.WAIT if Verdict.WAIT in verdicts else Verdict.READY

    def carried(self, edge: WorkflowEdge) -> Carried:
        """What an edge carries now. Raises `ExpressionFault` when its condition cannot be told.

        An edge that leaves a loop carries only once the loop has gone its last round. When an outer
        loop has, so have the loops inside it.
        """
        left = self._graph.leaves.get(edge.id)
        if left is not None and not self._is_settled(left):
            return "pending"
        return self._carried_this_round(edge)

    def goes_round(self, head: str) -> bool:
        """Tell whether the loop's round is over and a back edge asks for another."""
        return self._round_ended(head) and self._goes_back(head)

    def _is_settled(self, head: str) -> bool:
        """Tell whether nothing in the loop is under way or about to be, and no back edge carries."""
        if head not in self._settled:
            self._settled[head] = self._round_ended(head) and not self._goes_back(head)
        return self._settled[head]

    def _round_ended(self, head: str) -> bool:
        members = self._graph.loops[head].members
        if not members.isdisjoint(self._open):
            return False
        inner = (other for other in self._graph.loops if other in members and other != head)
        return not any(self._goes_back(other) for other in inner)

    def _goes_back(self, head: str) -> bool:
        if head not in self._returning:
            self._returning[head] = any(
                self._carried_this_round(edge) == "success" and not self._ends_loop(edge)
                for edge in self._graph.loops[head].back
            )
        return self._returning[head]

    def _ends_loop(self, edge: WorkflowEdge) -> bool:
        """A dispatch that carried out `terminate` gives its supervisor no other turn."""
        source = self._state.nodes[edge.source_node_id]
        is_dispatch = self._graph.nodes[edge.source_node_id].type_id == DISPATCH
        return is_dispatch and (source.outputs or {}).get("decision") == "terminate"

    def _carried_at_least(self, edge: WorkflowEdge) -> Carried:
        """What an edge carries independently of the outputs of its completed source."""
        is_decided = isinstance(edge.condition, Unset) and edge.id not in self._graph.leaves
        return "success" if is_decided else "pending"

    def _carried_this_round(self, edge: WorkflowEdge) -> Carried:
        source = self._state.nodes[edge.source_node_id]
        if source.status not in ENDED:
            return "pending"
        if source.status == "completed":
            return "success" if self._condition_holds(edge) else "skipped"
        if source.status == "failed":
            listens = edge.trigger_rule in TOLERANT
            return "failed" if not listens or self._condition_holds(edge) else "skipped"
        return "skipped"

    def _condition_holds(self, edge: WorkflowEdge) -> bool:
        if isinstance(edge.condition, Unset):
            return True
        if edge.id not in self._conditions:
            self._conditions[edge.id] = self._decide(edge, edge.condition)
        decided = self._conditions[edge.id]
        if isinstance(decided, ExpressionFault):
            raise ExpressionFault(f"the condition of edge {edge.id!r}: {decided}") from decided
        return decided

    def _decide(self, edge: WorkflowEdge, condition: EdgeCondition) -> bool | ExpressionFault:
        source = self._state.nodes[edge.source_node_id]
        outputs = source.outputs or {}
        if self._scope is None:
            self._scope = scope(self._state)
        known = self._scope | {
            "outputs": outputs,
            "output": outputs,
            "status": source.status,
            "error": msgspec.to_builtins(source.error) if source.error else {},
        }
        try:
            return holds(condition, known, partial(self._is_large, edge.target_node_id))
        except ExpressionFault as fault:
            return fault

    def _is_large(self, node_id: str, cost: int) -> bool:
        """Charge the cost of a condition, and tell whether a subprocess has to decide it."""
        if cost <= _SMALL or (cost <= EVALUATED_HERE and self._cost_here + cost <= _MOST_HERE):
            self._cost_here += cost
            return False
        total = self._cost_elsewhere.get(node_id, 0) + cost
        self._cost_elsewhere[node_id] = total
        if total > MAX_CONDITION_COST:
            raise ExpressionFault(
                f"is refused: the large conditions on edges to node {node_id!r} cost {total} "
                f"together, and at most {MAX_CONDITION_COST} is allowed"
            )
        return True


def _all_success(values: list[Carried]) -> Verdict:
    if "failed" in values or "skipped" in values:
        return Verdict.DEAD
    return Verdict.WAIT if "pending" in values else Verdict.READY


def _any_success(values: list[Carried]) -> Verdict:
    if "success" in values:
        return Verdict.READY
    return Verdict.WAIT if "pending" in values else Verdict.DEAD


def _any_failed(values: list[Carried]) -> Verdict:
    if "failed" in values:
        return Verdict.READY
    return Verdict.WAIT if "pending" in values else Verdict.DEAD


def _all_complete(values: list[Carried]) -> Verdict:
    if "pending" in values:
        return Verdict.WAIT
    # When not one edge carried anything, the skip goes on downstream.
    return Verdict.DEAD if set(values) == {"skipped"} else Verdict.READY


def _none_failed(values: list[Carried]) -> Verdict:
    return Verdict.DEAD if "failed" in values else _all_complete(values)


_RULES: Mapping[TriggerRule, _Rule] = {
    "all_success": _all_success,
    "any_success": _any_success,
    "any_failed": _any_failed,
    "all_complete": _all_complete,
    "none_failed": _none_failed,
}
