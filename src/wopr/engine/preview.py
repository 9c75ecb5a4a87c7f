"""Prediction of the nodes that a fork executes, from the planner and the source's log."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from wopr.engine.fold.fold import INTERRUPTIONS, fold, fold_all
from wopr.engine.limits import HostLimits
from wopr.engine.plan import Expire, FailNode, Resume, Skip, Start, Step, plan
from wopr.engine.state import NodeStatus, RunState
from wopr.engine.triggers import EdgeStates, Readiness
from wopr.protocol.documents import Json, is_list, is_object
from wopr.protocol.events import RunEvent


@dataclass(frozen=True, slots=True)
class Forecast:
    """The nodes that a fork will execute, in the order of the workflow.

    `executed` are the nodes that the source executed, and the nodes that follow the end of its log
    without a condition. `possible` are the nodes that run only if a node ends differently than in
    the source, or if a condition holds that cannot be evaluated yet.
    """

    executed: list[str]
    possible: list[str]


def forecast_branch(start: RunState, record: Sequence[RunEvent], limits: HostLimits) -> Forecast:
    """Predict what a branch executes from the state at its first own event.

    `record` is the rest of the source's log, without an operator's cancellation. A branch plans
    its steps from that state on. The forecast assumes that its nodes end as recorded.
    """
    return _forecast(start, _Simulation(start, _split_executions(record), limits, ()))


def forecast_replay(
    start: RunState, record: Sequence[RunEvent], limits: HostLimits, effects: Collection[str]
) -> Forecast:
    """Predict what a replay executes from the state at its first own event.

    A replay repeats the record. The nodes `effects` fail where the record has no outcome.
    """
    simulation = _Simulation(fold_all(start, record), {}, limits, effects)
    simulation.executed |= {str(e.node_id) for e in record if e.type == "node.started"}
    return _forecast(start, simulation)


def _forecast(start: RunState, simulation: _Simulation) -> Forecast:
    if start.is_terminal:
        return Forecast([], [])
    simulation.executed |= set(start.active_nodes())
    simulation.follow()
    simulation.add_successors()
    nodes, executed = start.graph.nodes, simulation.executed
    possible = {name for name in _may_run(start, executed) - executed if not nodes[name].disabled}
    return Forecast([n for n in nodes if n in executed], [n for n in nodes if n in possible])


class _Simulation:
    """A simulated run: it is planned like any other run, and its nodes end as recorded.

    The nodes `fail_unrecorded` fail where the record has no outcome.
    """

    def __init__(
        self,
        state: RunState,
        executions: dict[str, deque[deque[RunEvent]]],
        limits: HostLimits,
        fail_unrecorded: Collection[str],
    ) -> None:
        self.state = state
        self.executed = set[str]()
        self._limits = limits
        self._executions = executions
        self._fail_unrecorded = fail_unrecorded
        # The remaining recorded events of the nodes in flight.
        self._in_flight: dict[str, deque[RunEvent]] = {}

    def follow(self) -> None:
        """Take steps until the run ends, or until no node in flight has a recorded outcome."""
        for node_id in self.state.active_nodes():
            self._begin(node_id)
        while not self.state.is_terminal:
            steps = plan(self.state, self.state.updated_at, self._limits).steps
            for step in steps:
                self._take(step)
            if not steps and not self._fold_until_one_ends():
                return

    def _take(self, step: Step) -> None:
        match step:
            case Start(node_id):
                self._execute(node_id)
            case FailNode(node_id) if self._executions.get(node_id):
                # The condition failed in the source too, or the log masks a value that it needs.
                self._execute(node_id)
            case Resume(node_id) | Expire(node_id) if self._in_flight.get(node_id):
                self._fold_next(node_id)
            case Resume(node_id):
                self._set(node_id, "running")
            case FailNode(node_id) | Expire(node_id):
                self._set(node_id, "failed")
            case Skip(node_id):
                self._set(node_id, "skipped")
            case _:
                self.state = replace(self.state, status="completed")

    def _execute(self, node_id: str) -> None:
        events = self._in_flight.get(node_id) or self._begin(node_id)
        if not events or events[0].type == "node.started":
            # Other nodes fail before they start because of their type or their condition.
            self.executed.add(node_id)
        if events:
            self._fold_next(node_id)
        else:
            self._set(node_id, "running")

    def _begin(self, node_id: str) -> deque[RunEvent] | None:
        executions = self._executions.get(node_id)
        if executions:
            self._in_flight[node_id] = executions.popleft()
            return self._in_flight[node_id]
        if node_id in self._fail_unrecorded:
            self._set(node_id, "failed")
        return None

    def _fold_next(self, node_id: str) -> RunEvent:
        """Fold the next recorded event of a node."""
        event = self._in_flight[node_id].popleft()
        if not self._in_flight[node_id]:
            del self._in_flight[node_id]
        self.state = fold(self.state, event)
        return event

    def _fold_until_one_ends(self) -> bool:
        """Continue the nodes in flight as recorded; return False if none can continue."""
        while self._in_flight:
            first = min(self._in_flight, key=lambda name: self._in_flight[name][0].sequence)
            if _ends_execution(self._fold_next(first)):
                return True
        return False

    def _set(self, node_id: str, status: NodeStatus) -> None:
        node = replace(self.state.nodes[node_id], status=status)
        self.state = replace(self.state, nodes={**self.state.nodes, node_id: node})

    def add_successors(self) -> None:
        """Add the nodes that run after the nodes in flight complete, unless a condition decides."""
        if self.state.is_terminal:
            return
        edge_states = EdgeStates(self.state)
        completing = set(self.state.active_nodes())
        while found := {n for n in self.state.nodes if self._follows(n, completing, edge_states)}:
            self.executed |= found
            completing |= found.difference(self._fail_unrecorded)

    def _follows(self, node_id: str, completing: Collection[str], edge_states: EdgeStates) -> bool:
        is_open = self.state.nodes[node_id].status == "pending" and node_id not in self.executed
        if not is_open or self.state.graph.nodes[node_id].disabled:
            return False
        return edge_states.readiness(node_id, completing) is Readiness.READY


def _may_run(start: RunState, executed: Collection[str]) -> set[str]:
    """Return every node that has not run yet, or that a loop or a reviewer can start again."""
    graph = start.graph
    found = {name for name, node in start.nodes.items() if node.status == "pending"}
    for name in executed:
        for head in graph.enclosing[name]:
            found |= graph.loops[head].members
        actions: Json = graph.nodes[name].config.get("actions")
        if is_list(actions) and "refine" in actions:
            found |= {edge.source_node_id for edge in graph.incoming[name]}
    return found


def _split_executions(record: Iterable[RunEvent]) -> dict[str, deque[deque[RunEvent]]]:
    """Return the events of each execution of each node, including retries, up to its end."""
    executions: dict[str, deque[deque[RunEvent]]] = {}
    is_open = set[str]()
    for event in record:
        node_id = event.node_id
        if not isinstance(node_id, str) or event.type == "node.skipped":
            continue
        if node_id not in is_open:
            executions.setdefault(node_id, deque()).append(deque())
            is_open.add(node_id)
        executions[node_id][-1].append(event)
        if _ends_execution(event):
            is_open.discard(node_id)
    return executions


def _ends_execution(event: RunEvent) -> bool:
    payload = event.payload if is_object(event.payload) else {}
    match event.type:
        case "node.completed" | "node.failed":
            return True
        case "node.cancelled":
            return payload.get("reason") not in INTERRUPTIONS
        case "approval.received":
            # The reviewer sent the work back, so the gate starts again.
            return payload.get("action") == "refine"
        case _:
            return False
