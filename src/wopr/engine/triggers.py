"""When a node may start: the five trigger rules over what its incoming edges carry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from wopr.engine.expressions import ExpressionFault, holds
from wopr.engine.fold_agents import DISPATCH
from wopr.engine.state import ENDED, RunState
from wopr.protocol.documents import Json, Unset
from wopr.protocol.workflow import TriggerRule, WorkflowEdge

Carried: TypeAlias = Literal["pending", "success", "skipped", "failed"]
_Rule: TypeAlias = Callable[[list[Carried]], "Verdict"]
# A failure that one of these rules listens to is handled by the workflow itself.
TOLERANT: frozenset[str] = frozenset({"any_failed", "all_complete", "any_success"})


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


def carried(state: RunState, edge: WorkflowEdge) -> Carried:
    """What an edge carries now. Raises `ExpressionFault` when its condition cannot be told."""
    return "pending" if _may_still_loop(state, edge) else _carried_this_round(state, edge)


def _carried_this_round(state: RunState, edge: WorkflowEdge) -> Carried:
    source = state.nodes[edge.source_node_id]
    if source.status not in ENDED:
        return "pending"
    if source.status == "completed":
        return "success" if _condition_holds(state, edge) else "skipped"
    if source.status == "failed":
        listens = edge.trigger_rule in TOLERANT
        return "failed" if not listens or _condition_holds(state, edge) else "skipped"
    return "skipped"


def _may_still_loop(state: RunState, edge: WorkflowEdge) -> bool:
    """An edge that leaves a loop carries only once the loop has gone its last round."""
    for head in state.graph.enclosing[edge.source_node_id]:
        if edge.target_node_id not in state.graph.loops[head].members and not is_settled(
            state, head
        ):
            return True
    return False


def is_settled(state: RunState, head: str) -> bool:
    """Tell whether nothing in the loop is under way or about to be, and no back edge carries."""
    return _round_ended(state, head) and not _goes_back(state, head)


def goes_round(state: RunState, head: str) -> bool:
    """Tell whether the loop's round is over and a back edge asks for another."""
    return _round_ended(state, head) and _goes_back(state, head)


def _round_ended(state: RunState, head: str) -> bool:
    members = state.graph.loops[head].members
    if any(state.nodes[member].status not in ENDED for member in members):
        return False
    inner = (other for other in state.graph.loops if other in members and other != head)
    return not any(_goes_back(state, other) for other in inner)


def _goes_back(state: RunState, head: str) -> bool:
    back = state.graph.loops[head].back
    return any(
        _carried_this_round(state, edge) == "success" and not _ends_loop(state, edge)
        for edge in back
    )


def _ends_loop(state: RunState, edge: WorkflowEdge) -> bool:
    """A dispatch that carried out `terminate` gives its supervisor no other turn."""
    source = state.nodes[edge.source_node_id]
    is_dispatch = state.graph.nodes[edge.source_node_id].type_id == DISPATCH
    return is_dispatch and (source.outputs or {}).get("decision") == "terminate"


def _condition_holds(state: RunState, edge: WorkflowEdge) -> bool:
    if isinstance(edge.condition, Unset):
        return True
    source = state.nodes[edge.source_node_id]
    outputs = source.outputs or {}
    known = scope(state) | {
        "outputs": outputs,
        "output": outputs,
        "status": source.status,
        "error": msgspec.to_builtins(source.error) if source.error else {},
    }
    try:
        return holds(edge.condition, known)
    except ExpressionFault as fault:
        raise ExpressionFault(f"the condition of edge {edge.id!r}: {fault}") from fault


def verdict(state: RunState, node_id: str, completing: Collection[str] = ()) -> Verdict:
    """Apply the trigger rules. Edges with the same rule form a group, and every group must agree.

    The nodes `completing` are taken as completed. What their edges carry is known only where no
    condition and no loop decides it.
    """
    edges = state.graph.incoming[node_id]
    if not edges:
        return Verdict.READY
    if not any(
        edge.source_node_id in completing or state.nodes[edge.source_node_id].status in ENDED
        for edge in edges
    ):
        # No rule decides on pending edges alone.
        return Verdict.WAIT
    groups: dict[TriggerRule, list[Carried]] = {}
    for edge in edges:
        carries = (
            _carried_at_least(state, edge)
            if edge.source_node_id in completing
            else carried(state, edge)
        )
        groups.setdefault(edge.trigger_rule, []).append(carries)
    verdicts = [_RULES[rule](values) for rule, values in groups.items()]
    if Verdict.DEAD in verdicts:
        return Verdict.DEAD
    return Verdict.WAIT if Verdict.WAIT in verdicts else Verdict.READY


def _carried_at_least(state: RunState, edge: WorkflowEdge) -> Carried:
    """What an edge carries independently of the outputs of its completed source."""
    is_decided = isinstance(edge.condition, Unset) and not any(
        edge.target_node_id not in state.graph.loops[head].members
        for head in state.graph.enclosing[edge.source_node_id]
    )
    return "success" if is_decided else "pending"


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
