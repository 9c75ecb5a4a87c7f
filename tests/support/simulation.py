"""A run without a runtime: steps become events like in the advance; the test chooses outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

import msgspec

from wopr.engine.fold.fold import fold, fold_all
from wopr.engine.graph import Graph, compile_graph
from wopr.engine.limits import HostLimits, backoff_ms, max_retries
from wopr.engine.outcome import Completed, Failed
from wopr.engine.plan import (
    Breach,
    FailNode,
    FailRun,
    Finish,
    LoopbackLimit,
    Plan,
    Skip,
    Start,
    Step,
    plan,
    run_outputs,
)
from wopr.engine.state import NodeState, RunIdentity, RunState, initial_state
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, to_iso
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import RunError
from wopr.protocol.workflow import WorkflowDefinition, WorkflowNode

EPOCH = 1_800_000_000_000
MAX_TURNS = 2000
REENTRANT = frozenset({"core.loop"})
IDENTITY = RunIdentity(run_id="run-1", tenant="acme", workflow_id="sketch", workflow_version="1")

Ending: TypeAlias = Completed | Failed
Behaviour: TypeAlias = Callable[[RunState, WorkflowNode], Ending]
Choice: TypeAlias = Callable[[list[str]], str]


def node(node_id: str, type_id: str = "core.noop", **more: Json) -> JsonObject:
    """Return a node of a definition with defaults for what the engine does not use."""
    required = {"name": node_id, "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
    return {"id": node_id, "typeId": type_id, **required, **more}


def edge(source: str, target: str, rule: str = "all_success", when: str = "") -> JsonObject:
    """Return an edge of a definition; `when` is its condition."""
    ends = {"id": f"{source}-{target}", "sourceNodeId": source, "targetNodeId": target}
    condition = {"condition": {"type": "expression", "expression": when}} if when else {}
    return {**ends, "triggerRule": rule, **condition}


def sketch(
    nodes: Iterable[JsonObject], edges: Iterable[JsonObject] = (), **settings: Json
) -> WorkflowDefinition:
    """Return a definition of these nodes and edges."""
    body = {"nodes": list(nodes), "edges": list(edges), "settings": settings}
    rest = {"id": "sketch", "name": "Sketch", "version": "1", "triggers": [], "variables": []}
    return msgspec.convert({**rest, **body, "metadata": {}}, WorkflowDefinition)


def failure(code: str = "node_error", *, retryable: bool = True) -> Failed:
    """Return a node's failure."""
    return Failed(RunError(code=code, message="it failed", retryable=retryable))


def obedient(state: RunState, node: WorkflowNode) -> Ending:
    """Complete; a loop node behaves like a loop."""
    if node.type_id != "core.loop":
        return Completed()
    step = state.nodes[node.id].iteration
    return Completed({"done": step >= node.config["times"], "iteration": step})


def first(running: list[str]) -> str:
    """Let nodes end in the order of the definition."""
    return running[0]


def state_of(graph: Graph, **nodes: NodeState) -> RunState:
    """Return the state of an active run with these nodes."""
    begun = msgspec.structs.replace(
        initial_state(IDENTITY, graph),
        status="running",
        started_at=EPOCH,
        updated_at=EPOCH,
        next_sequence=1,
    )
    return msgspec.structs.replace(begun, nodes={**begun.nodes, **nodes})


class Simulation:
    """One run: its log, the folded state, and the clock.

    Nodes named in `inline` end within the step that starts them, the others when `run` ends
    them.
    """

    def __init__(
        self,
        definition: WorkflowDefinition,
        behave: Behaviour = obedient,
        *,
        inline: Collection[str] = (),
        limits: HostLimits | None = None,
        **configurable: Json,
    ) -> None:
        self.graph = compile_graph(definition, REENTRANT)
        self.limits = limits or HostLimits()
        self.now = EPOCH
        self.log: list[RunEvent] = []
        self.state = initial_state(IDENTITY, self.graph)
        self._behave = behave
        self._inline = inline
        self.add("run.started", {"configurable": configurable})

    def run(self, choose: Choice = first) -> None:
        """Continue until the run has ended; when all nodes wait, the clock moves to the wake-up."""
        for _ in range(MAX_TURNS):
            self.take_steps()
            if self.state.is_terminal:
                return
            running = self.nodes("running")
            if running:
                self.settle(choose(running))
            else:
                wake_at = self.plan().wake_at
                assert wake_at is not None
                assert wake_at > self.now
                self.now = wake_at
        raise AssertionError(f"no end after {len(self.log)} events")

    def plan(self) -> Plan:
        """Return the current plan of the run."""
        return plan(self.state, self.now, self.limits)

    def take_steps(self) -> None:
        """Take every step that needs no waiting."""
        for _ in range(MAX_TURNS):
            steps = self.plan().steps
            if not steps:
                return
            for step in steps:
                self._take(step)
        raise AssertionError(f"steps without end after {len(self.log)} events")

    def settle(self, node_id: str) -> None:
        """End a running node with the outcome of its behaviour."""
        match self._behave(self.state, self.graph.nodes[node_id]):
            case Completed(outputs):
                self.add("node.completed", {"nodeId": node_id, "outputs": outputs}, node_id)
            case Failed(error):
                self._fail_or_retry(node_id, error)

    def add(self, event_type: str, payload: JsonObject, node_id: str = "") -> None:
        """Append an event and fold it."""
        event = RunEvent(
            event_id=f"e{len(self.log)}",
            run_id=IDENTITY.run_id,
            type=event_type,
            payload=payload,
            timestamp=to_iso(self.now),
            sequence=len(self.log),
            node_id=node_id or UNSET,
        )
        self.log.append(event)
        self.state = fold(self.state, event)

    def nodes(self, *statuses: str) -> list[str]:
        """Return the nodes that have one of these statuses."""
        return [name for name, found in self.state.nodes.items() if found.status in statuses]

    def types(self) -> list[str]:
        """Return the event types of the log."""
        return [event.type for event in self.log]

    def about(self, event_type: str) -> list[str]:
        """Return the nodes of the events of one type, in log order."""
        found = (event.node_id for event in self.log if event.type == event_type)
        return [node_id for node_id in found if not isinstance(node_id, Unset)]

    def refold(self, length: int) -> RunState:
        """Fold the beginning of the log again, on a newly compiled graph."""
        graph = compile_graph(self.graph.definition, REENTRANT)
        return fold_all(initial_state(IDENTITY, graph), self.log[:length])

    def _take(self, step: Step) -> None:
        match step:
            case Start(node_id, attempt):
                type_id = self.graph.nodes[node_id].type_id
                payload = {"nodeId": node_id, "typeId": type_id, "attempt": attempt}
                self.add("node.started", payload, node_id)
                if node_id in self._inline:
                    self.settle(node_id)
            case Skip(node_id, reason):
                self.add("node.skipped", {"nodeId": node_id, "reason": reason}, node_id)
            case FailNode(node_id, error):
                self._fail(node_id, error, 1)
            case Finish():
                self.add("run.completed", {"outputs": run_outputs(self.state)})
            case Breach() | LoopbackLimit() | FailRun():
                self._end(step)

    def _end(self, step: Breach | LoopbackLimit | FailRun) -> None:
        for node_id in self.state.active_nodes():
            self.add("node.cancelled", {"nodeId": node_id, "reason": "run-failed"}, node_id)
        match step:
            case Breach(kind, limit, observed):
                payload = {"kind": kind, "limit": limit, "observed": observed}
                self.add("cap.breached", payload, step.node_id or "")
            case LoopbackLimit(node_id, iterations, limit):
                payload = {"nodeId": node_id, "iterations": iterations, "limit": limit}
                self.add("workflow.loopback-limit", payload, node_id)
            case FailRun():
                pass
        self.add("run.failed", {"error": msgspec.to_builtins(step.error)})

    def _fail_or_retry(self, node_id: str, error: RunError) -> None:
        declared = self.graph.nodes[node_id]
        attempts = self.state.nodes[node_id].attempt + 1
        if not error.retryable or attempts > max_retries(self.state, declared):
            self._fail(node_id, error, attempts)
            return
        delay = backoff_ms(declared, attempts)
        payload = {"nodeId": node_id, "attempt": attempts, "delayMs": delay}
        self.add("node.retried", payload, node_id)

    def _fail(self, node_id: str, error: RunError, attempts: int) -> None:
        body = {"nodeId": node_id, "error": msgspec.to_builtins(error), "attempts": attempts}
        self.add("node.failed", body, node_id)
