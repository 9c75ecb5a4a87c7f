"""`plan`: what a run may do now, as values. It looks at the state and the clock, and does nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from wopr.engine.expressions import ExpressionFault
from wopr.engine.fold_agents import SUPERVISOR
from wopr.engine.limits import HostLimits, RunLimits, node_deadline, run_limits
from wopr.engine.state import RunState
from wopr.engine.steps import (
    Breach,
    Expire,
    FailNode,
    FailRun,
    Finish,
    Loopback,
    Plan,
    Resume,
    Skip,
    Start,
    Step,
)
from wopr.engine.triggers import TOLERANT, Traffic, Verdict
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import RunError
from wopr.protocol.workflow import WorkflowEdge

# Config keys of `core.loop` that say how often it goes round.
COUNTS = frozenset({"items", "times"})


def plan(state: RunState, now: int, host: HostLimits) -> Plan:
    """Name every step the run may take now, in the workflow's own order.

    The same state and time always give the same answer, so a worker that crashed and one that
    took over plan alike. No steps and no terminal status means that the run waits: for a node
    in flight, a timer, a child, a person, or its resume.
    """
    if state.is_terminal or not state.next_sequence:
        return Plan((), None)
    limits = run_limits(state, host)
    wake = wake_at(state, now, host)
    if wake is None:
        return Plan((_out_of_time(state, now, limits),), None)
    return Plan(() if state.status == "paused" else _steps(state, now, limits), wake)


def wake_at(
    state: RunState, now: int, host: HostLimits, *, in_flight: Collection[str] = ()
) -> int | None:
    """When time alone gives the run a step to take.

    The caller executes the nodes `in_flight` and stops them at their timeout, so their timeouts need
    no wake-up.
    """
    if state.is_terminal or not state.next_sequence:
        return None
    # The breach must observe strictly more than the limit.
    deadline = state.started_at + run_limits(state, host).duration_ms + 1
    if now >= deadline:
        return None
    if state.status == "paused":
        return deadline
    return min([deadline, *_timers(state, in_flight)])


def _timers(state: RunState, in_flight: Collection[str]) -> Iterator[int]:
    """When a node is to be tried again, or its own time or its wait for an answer is over."""
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
    traffic = Traffic(state)
    steps: list[Step] = [*_refined_too_often(state, limits), *_moves(state, now, traffic)]
    steps = steps or [*_next_rounds(state, limits, traffic)]
    for step in steps:
        if isinstance(step, Breach | Loopback):
            # The run ends here: nothing may come beside it or after it.
            return (step,)
    settled = tuple(step for step in steps if not isinstance(step, Start))
    if settled:
        # Skips and failures settle first: they decide which of the others may start.
        return settled
    if steps:
        return _within_cap(state, steps, limits)
    return () if state.active() else (_finish(state, traffic),)


def _unhandled_failure(state: RunState) -> FailRun | None:
    """The first failed node whose failure no edge listens to."""
    for node_id, node in state.nodes.items():
        if node.status == "failed" and not any(
            edge.trigger_rule in TOLERANT for edge in state.graph.outgoing[node_id]
        ):
            return _fail_run(state, node_id)
    return None


def _fail_run(state: RunState, node_id: str) -> FailRun:
    error = state.nodes[node_id].error
    return FailRun(node_id, error or RunError(code="node_error", message=f"{node_id} failed"))


def _moves(
    state: RunState, now: int, traffic: Traffic
) -> Iterator[Start | Skip | FailNode | Resume | Expire]:
    """Every node that can leave `pending`, try again, or go on after its wait."""
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
            step = _first_move(state, node_id, traffic)
            if step is not None:
                yield step


def _refined_too_often(state: RunState, limits: RunLimits) -> Iterator[Step]:
    """Gates whose work was sent back once more than a workflow may loop back."""
    for node_id, node in state.nodes.items():
        if node.status == "pending" and node.refinements > limits.loopbacks:
            message = (
                f"{node_id} sent the work back more than {limits.loopbacks} times: raise "
                "settings.maxLoopbackIterations of the workflow"
            )
            error = RunError(code="loop_limit_exceeded", message=message)
            yield Loopback(node_id, node.refinements, limits.loopbacks, error)


def _first_move(state: RunState, node_id: str, traffic: Traffic) -> Start | Skip | FailNode | None:
    try:
        answer = traffic.verdict(node_id)
    except ExpressionFault as fault:
        return FailNode(node_id, _expression_error(node_id, fault))
    if answer is Verdict.WAIT:
        return None
    if answer is Verdict.DEAD:
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


def _next_rounds(state: RunState, limits: RunLimits, traffic: Traffic) -> Iterator[Step]:
    """Loops whose back edge carries, once nothing inside them is under way."""
    for head in state.graph.loops:
        try:
            if traffic.goes_round(head):
                yield _round_or_limit(state, head, limits)
        except ExpressionFault as fault:
            if state.nodes[head].status != "failed":
                yield FailNode(head, _expression_error(head, fault))


def _round_or_limit(state: RunState, head: str, limits: RunLimits) -> Step:
    if state.graph.nodes[head].type_id == SUPERVISOR:
        return _turn_or_limit(state, head, limits)
    iterations = state.nodes[head].iteration + 1
    is_bounded = limits.are_loopbacks_set or not _is_counted(state, head)
    if is_bounded and iterations > limits.loopbacks:
        message = (
            f"loop {head!r} went round more than {limits.loopbacks} times: raise "
            "settings.maxLoopbackIterations of the workflow"
        )
        error = RunError(code="loop_limit_exceeded", message=message)
        return Loopback(head, iterations, limits.loopbacks, error)
    if iterations > limits.loop_iterations:
        message = (
            f"loop {head!r} went round more than {limits.loop_iterations} times: the limit is "
            "WOPR_MAX_LOOP_ITERATIONS of the host, or maxLoopIterations of the run"
        )
        error = RunError(code="loop_limit_exceeded", message=message)
        return Breach("loop-iterations", limits.loop_iterations, iterations, error, head)
    return Start(head)


def _is_counted(state: RunState, head: str) -> bool:
    """Tell whether a loop goes over items or a number of times, so that it ends by itself."""
    node = state.graph.nodes[head]
    carried_items = any(edge.target_input == "items" for edge in state.graph.incoming[head])
    return carried_items or "items" in node.inputs or not COUNTS.isdisjoint(node.config)


def _turn_or_limit(state: RunState, head: str, limits: RunLimits) -> Step:
    """A supervisor's turns are bounded by the run, not by the workflow's loopback setting."""
    turn = state.nodes[head].iteration + 2
    if turn <= limits.loop_iterations:
        return Start(head)
    message = f"the supervisor may take {limits.loop_iterations} turns at most"
    error = RunError(code="loop_limit_exceeded", message=message)
    return Breach("loop-iterations", limits.loop_iterations, turn, error)


def _within_cap(state: RunState, starts: list[Step], limits: RunLimits) -> tuple[Step, ...]:
    """As many starts as the cap on node executions leaves room for; a breach when there is none."""
    room = limits.node_executions - state.executions
    if room > 0:
        return tuple(starts[:room])
    first = starts[0]
    node_id = first.node_id if isinstance(first, Start) else None
    message = f"the run may execute at most {limits.node_executions} nodes"
    error = RunError(code="recursion_limit_exceeded", message=message)
    observed = state.executions + 1
    return (Breach("node-executions", limits.node_executions, observed, error, node_id),)


def _finish(state: RunState, traffic: Traffic) -> Step:
    """Nothing is left to do: complete, unless a failure was listened to by nobody that ran."""
    for node_id, node in state.nodes.items():
        if node.status == "failed" and not _was_handled(state, node_id, traffic):
            return _fail_run(state, node_id)
    return Finish(outputs(state))


def _was_handled(state: RunState, node_id: str, traffic: Traffic) -> bool:
    return any(
        edge.trigger_rule in TOLERANT
        and state.nodes[edge.target_node_id].status == "completed"
        and _was_listened_to(edge, traffic)
        for edge in state.graph.outgoing[node_id]
    )


def _was_listened_to(edge: WorkflowEdge, traffic: Traffic) -> bool:
    if edge.trigger_rule == "any_failed":
        # The target ran, so the edge carried then, whatever its condition would say by now.
        return True
    try:
        return traffic.carried(edge) == "failed"
    except ExpressionFault:
        return False


def outputs(state: RunState) -> JsonObject:
    """What the run returns: its primary node's outputs, else those of every node at the end."""
    for node in state.graph.nodes.values():
        if node.output_role == "primary":
            return state.nodes[node.id].outputs or {}
    return {
        node.id: state.nodes[node.id].outputs
        for node in state.graph.sinks()
        if state.nodes[node.id].status == "completed" and state.nodes[node.id].outputs
    }
