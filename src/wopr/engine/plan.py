"""`plan`: the steps that a run may take now, as values.

A plan is a pure function of the state and the time. It never takes a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from wopr.engine.cel.expressions import ExpressionFault
from wopr.engine.fold.agents import SUPERVISOR
from wopr.engine.limits import HostLimits, RunLimits, node_deadline, run_limits
from wopr.engine.state import RunState
from wopr.engine.triggers import TOLERANT_RULES, EdgeStates, Readiness
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import RunError
from wopr.protocol.workflow import WorkflowEdge


@dataclass(frozen=True, slots=True)
class Start:
    """Start a node."""

    node_id: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip a node."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailNode:
    """Fail a node that never started."""

    node_id: str
    error: RunError


@dataclass(frozen=True, slots=True)
class Breach:
    """End the run because a limit was reached."""

    kind: str
    limit: float
    observed: float
    error: RunError
    node_id: str | None = None
    # The owner of the limit, if it is not the run.
    scope: str = ""


@dataclass(frozen=True, slots=True)
class LoopbackLimit:
    """End the run because a loop exceeded its iteration limit."""

    node_id: str
    iterations: int
    limit: int
    error: RunError


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a node with a resume value that is on the log."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Expire:
    """End an interrupt that timed out."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Complete the run. `run_outputs` returns its outputs."""


@dataclass(frozen=True, slots=True)
class FailRun:
    """Fail the run because a node failed and nothing in the workflow handles it."""

    node_id: str
    error: RunError


Step: TypeAlias = (
    Start | Skip | FailNode | Breach | LoopbackLimit | Resume | Expire | Finish | FailRun
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to take now, and when to plan again if nothing happens before."""

    steps: tuple[Step, ...]
    wake_at: int | None


# Config keys of `core.loop` that set the number of iterations.
COUNT_KEYS = frozenset({"items", "times"})


def plan(state: RunState, now: int, host: HostLimits, *, in_flight: Collection[str] = ()) -> Plan:
    """Return every step that the run may take now, in the order of the workflow.

    The same state and time always give the same plan, so a process that takes over a run makes the
    plan of the process that crashed. If there are no steps and the run is not terminal, it waits:
    for a node in flight, a timer, a child, a person, or a resume.
    """
    if state.is_terminal or not state.next_sequence:
        return Plan((), None)
    limits = run_limits(state, host)
    wake = _wake_at(state, now, limits, in_flight)
    if wake is None:
        return Plan((_out_of_time(state, now, limits),), None)
    return Plan(() if state.status == "paused" else _steps(state, now, limits), wake)


def wake_at(
    state: RunState, now: int, host: HostLimits, *, in_flight: Collection[str] = ()
) -> int | None:
    """Return the next time at which the run has a step to take without an external event.

    None when the run has ended, or has a step to take now because it used up its time. The caller
    executes the nodes `in_flight` and stops them at their timeouts, which need no wake-up.
    """
    if state.is_terminal or not state.next_sequence:
        return None
    return _wake_at(state, now, run_limits(state, host), in_flight)


def _wake_at(
    state: RunState, now: int, limits: RunLimits, in_flight: Collection[str]
) -> int | None:
    # A run may use its limit completely.
    deadline = state.started_at + limits.duration_ms + 1
    if now >= deadline:
        return None
    if state.status == "paused":
        return deadline
    return min([deadline, *_timers(state, in_flight)])


def _timers(state: RunState, in_flight: Collection[str]) -> Iterator[int]:
    """Yield the times of retries, node timeouts and interrupt timeouts."""
    for node_id, node in state.nodes.items():
        if node.status == "retrying":
            yield node.retry_at
        elif node.status == "running":
            deadline = None if node_id in in_flight else node_deadline(state, node_id)
            if deadline is not None:
                yield deadline
        elif node.status == "suspended":
            deadline = node.interrupt.deadline if node.interrupt is not None else None
            if deadline is not None:
                yield deadline


def _out_of_time(state: RunState, now: int, limits: RunLimits) -> Breach:
    observed = now - state.started_at
    message = f"the run took longer than its limit of {limits.duration_ms} ms"
    error = RunError(code="run_timeout", message=message)
    return Breach("run-duration", limits.duration_ms, observed, error)


def _steps(state: RunState, now: int, limits: RunLimits) -> tuple[Step, ...]:
    fatal = _unhandled_failure(state)
    if fatal is not None:
        return (fatal,)
    edge_states = EdgeStates(state)
    steps: list[Step] = [*_refined_too_often(state, limits), *_node_steps(state, now, edge_states)]
    steps = steps or [*_loop_steps(state, limits, edge_states)]
    for step in steps:
        if isinstance(step, Breach | LoopbackLimit):
            # The run ends here, so no other step may be taken.
            return (step,)
    settled = tuple(step for step in steps if not isinstance(step, Start))
    if settled:
        # Skips and failures come first because they decide which other nodes may start.
        return settled
    if steps:
        return _within_execution_limit(state, steps, limits)
    return () if state.active_nodes() else (_finish(state, edge_states),)


def _unhandled_failure(state: RunState) -> FailRun | None:
    """Return the first failed node whose failure no edge handles."""
    for node_id, node in state.nodes.items():
        if node.status == "failed" and not any(
            edge.trigger_rule in TOLERANT_RULES for edge in state.graph.outgoing[node_id]
        ):
            return _fail_run(state, node_id)
    return None


def _fail_run(state: RunState, node_id: str) -> FailRun:
    error = state.nodes[node_id].error
    return FailRun(node_id, error or RunError(code="node_error", message=f"{node_id} failed"))


def _node_steps(
    state: RunState, now: int, edge_states: EdgeStates
) -> Iterator[Start | Skip | FailNode | Resume | Expire]:
    """Yield a step for every node that can start, be skipped, be retried, be resumed or expire."""
    for node_id, node in state.nodes.items():
        if node.status == "retrying" and node.retry_at <= now:
            yield Start(node_id, node.attempt)
        elif node.status == "resuming":
            yield Resume(node_id)
        elif node.status == "suspended":
            deadline = node.interrupt.deadline if node.interrupt is not None else None
            if deadline is not None and deadline <= now:
                yield Expire(node_id)
        elif node.status == "pending":
            step = _pending_step(state, node_id, edge_states)
            if step is not None:
                yield step


def _refined_too_often(state: RunState, limits: RunLimits) -> Iterator[Step]:
    """Yield a step for each gate that sent the work back more often than the workflow allows."""
    for node_id, node in state.nodes.items():
        if node.status == "pending" and node.refinements > limits.loopbacks:
            message = (
                f"{node_id} sent the work back more than {limits.loopbacks} times: raise "
                "settings.maxLoopbackIterations of the workflow"
            )
            error = RunError(code="loop_limit_exceeded", message=message)
            yield LoopbackLimit(node_id, node.refinements, limits.loopbacks, error)


def _pending_step(
    state: RunState, node_id: str, edge_states: EdgeStates
) -> Start | Skip | FailNode | None:
    try:
        readiness = edge_states.readiness(node_id)
    except ExpressionFault as fault:
        return FailNode(node_id, _expression_error(node_id, fault))
    if readiness is Readiness.WAIT:
        return None
    if readiness is Readiness.SKIP:
        return Skip(node_id, _why_skipped(state, node_id))
    if state.graph.nodes[node_id].disabled:
        return Skip(node_id, "disabled")
    return Start(node_id)


def _expression_error(node_id: str, fault: ExpressionFault) -> RunError:
    return RunError(code="expression_error", message=f"node {node_id!r}: {fault}")


def _why_skipped(state: RunState, node_id: str) -> str:
    sources = [state.nodes[e.source_node_id].status for e in state.graph.incoming[node_id]]
    if "failed" in sources:
        return "upstream-failed"
    return "upstream-skipped" if "skipped" in sources else "condition"


def _loop_steps(state: RunState, limits: RunLimits, edge_states: EdgeStates) -> Iterator[Step]:
    """Yield a step for each loop that starts another iteration."""
    for head in state.graph.loops:
        try:
            if edge_states.starts_iteration(head):
                yield _iteration_or_limit(state, head, limits)
        except ExpressionFault as fault:
            if state.nodes[head].status != "failed":
                yield FailNode(head, _expression_error(head, fault))


def _iteration_or_limit(state: RunState, head: str, limits: RunLimits) -> Step:
    if state.graph.nodes[head].type_id == SUPERVISOR:
        return _turn_or_limit(state, head, limits)
    iterations = state.nodes[head].iteration + 1
    is_bounded = limits.are_loopbacks_set or not _is_counted(state, head)
    if is_bounded and iterations > limits.loopbacks:
        message = (
            f"loop {head!r} exceeded {limits.loopbacks} iterations: raise "
            "settings.maxLoopbackIterations of the workflow"
        )
        error = RunError(code="loop_limit_exceeded", message=message)
        return LoopbackLimit(head, iterations, limits.loopbacks, error)
    if iterations > limits.loop_iterations:
        message = (
            f"loop {head!r} exceeded {limits.loop_iterations} iterations: the limit is "
            "WOPR_MAX_LOOP_ITERATIONS of the host, or maxLoopIterations of the run"
        )
        error = RunError(code="loop_limit_exceeded", message=message)
        return Breach("loop-iterations", limits.loop_iterations, iterations, error, head)
    return Start(head)


def _is_counted(state: RunState, head: str) -> bool:
    """Return whether a loop iterates over items or a fixed number of times."""
    node = state.graph.nodes[head]
    carried_items = any(edge.target_input == "items" for edge in state.graph.incoming[head])
    return carried_items or "items" in node.inputs or not COUNT_KEYS.isdisjoint(node.config)


def _turn_or_limit(state: RunState, head: str, limits: RunLimits) -> Step:
    """Start a turn of a supervisor. The limit is that of the run and not the loopback setting."""
    turn = state.nodes[head].iteration + 2
    if turn <= limits.loop_iterations:
        return Start(head)
    message = f"the supervisor may take at most {limits.loop_iterations} turns"
    error = RunError(code="loop_limit_exceeded", message=message)
    return Breach("loop-iterations", limits.loop_iterations, turn, error)


def _within_execution_limit(
    state: RunState, starts: list[Step], limits: RunLimits
) -> tuple[Step, ...]:
    """Return the starts that the limit of node executions allows, or a breach if it allows none."""
    room = limits.node_executions - state.executions
    if room > 0:
        return tuple(starts[:room])
    first = starts[0]
    node_id = first.node_id if isinstance(first, Start) else None
    message = f"the run may execute at most {limits.node_executions} nodes"
    error = RunError(code="recursion_limit_exceeded", message=message)
    observed = state.executions + 1
    return (Breach("node-executions", limits.node_executions, observed, error, node_id),)


def _finish(state: RunState, edge_states: EdgeStates) -> Step:
    """Return the last step: complete the run, or fail it if no node that ran handled a failure."""
    for node_id, node in state.nodes.items():
        if node.status == "failed" and not _was_handled(state, node_id, edge_states):
            return _fail_run(state, node_id)
    return Finish()


def _was_handled(state: RunState, node_id: str, edge_states: EdgeStates) -> bool:
    return any(
        edge.trigger_rule in TOLERANT_RULES
        and state.nodes[edge.target_node_id].status == "completed"
        and _had_failure(edge, edge_states)
        for edge in state.graph.outgoing[node_id]
    )


def _had_failure(edge: WorkflowEdge, edge_states: EdgeStates) -> bool:
    if edge.trigger_rule == "any_failed":
        # The target ran, so the edge was active then, even if its condition is false now.
        return True
    try:
        return edge_states.edge_state(edge) == "failed"
    except ExpressionFault:
        return False


def run_outputs(state: RunState) -> JsonObject:
    """Return the run's outputs: those of its primary node, else those of every final node."""
    for node in state.graph.nodes.values():
        if node.output_role == "primary":
            return state.nodes[node.id].outputs or {}
    return {
        node.id: state.nodes[node.id].outputs
        for node in state.graph.sinks()
        if state.nodes[node.id].status == "completed" and state.nodes[node.id].outputs
    }
