"""Turns the engine's steps into events: the part of an advance that needs no waiting."""

from __future__ import annotations

import msgspec

from wopr.engine.fold import INTERRUPTED_BY_PAUSE
from wopr.engine.limits import backoff_ms, max_retries, node_deadline
from wopr.engine.outcome import (
    Breached,
    Completed,
    Failed,
    NodeFailure,
    Outcome,
    Sleeping,
    Suspended,
    Waiting,
)
from wopr.engine.plan import outputs
from wopr.engine.state import RunState
from wopr.engine.steps import (
    Breach,
    Expire,
    FailNode,
    FailRun,
    Finish,
    Loopback,
    Resume,
    Skip,
    Start,
    Step,
)
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import Conflict
from wopr.protocol.runs import RunError
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst, as_json
from wopr.runtime.suspending import expired, suspend
from wopr.runtime.wishes import CancelWish
from wopr.store.port import Wish

NODE_TIMEOUT = "node_timeout"
# An error beyond this is cut to its code and the beginning of its message.
LARGEST_ERROR_BYTES = 256 * 1024
LONGEST_MESSAGE = 4000


def error_json(error: RunError) -> JsonObject:
    """An error as a payload member."""
    plain: JsonObject = msgspec.to_builtins(error)
    if len(msgspec.json.encode(plain)) > LARGEST_ERROR_BYTES:
        # The error of a node may repeat all of its data.
        plain = {"code": error.code, "message": f"{error.message[:LONGEST_MESSAGE]}…"}
        if not isinstance(error.retryable, Unset):
            plain["retryable"] = error.retryable
    return plain


def take(run: ActiveRun, burst: Burst, step: Step) -> None:
    """Append the events of a step after which no node is called."""
    match step:
        case Start() | Resume():
            raise AssertionError("steps that call a node are taken by `Stepping`")
        case Skip(node_id, reason):
            payload = {"nodeId": node_id, "reason": reason}
            burst.add("node.skipped", payload, node_id=node_id)
        case FailNode(node_id, error):
            fail_node(burst, node_id, error)
        case Breach():
            breach(run, burst, step)
        case Loopback(node_id, iterations, limit, error):
            stop_nodes(run, burst, "loop-limit")
            loop: JsonObject = {"nodeId": node_id, "iterations": iterations, "limit": limit}
            burst.add("workflow.loopback-limit", loop, node_id=node_id)
            burst.add("run.failed", {"error": error_json(error), "failedNodeId": node_id})
        case Expire(node_id):
            fail_node(burst, node_id, expired(burst, node_id))
        case Finish():
            # From the masked state: what the log hides, the run's outputs hide.
            try:
                burst.add("run.completed", {"outputs": outputs(burst.state)})
            except NodeFailure as failure:
                burst.add("run.failed", {"error": error_json(failure.error)})
        case FailRun(node_id, error):
            stop_nodes(run, burst, "run-failed")
            burst.add("run.failed", {"error": error_json(error), "failedNodeId": node_id})


def breach(run: ActiveRun, burst: Burst, step: Breach) -> None:
    """Stop what is in flight, say which cap was reached, and fail the run."""
    stop_nodes(run, burst, step.error.code)
    payload: JsonObject = {"kind": step.kind, "limit": step.limit, "observed": step.observed}
    if step.node_id is not None:
        payload["nodeId"] = step.node_id
    if step.scope:
        payload["scope"] = step.scope
    burst.add("cap.breached", payload, node_id=step.node_id or "")
    burst.add("run.failed", {"error": error_json(step.error)})


def fail_node(burst: Burst, node_id: str, error: RunError, attempts: int = 1) -> None:
    """Append a node's final failure."""
    payload = {"nodeId": node_id, "error": error_json(error), "attempts": attempts}
    cause = burst.state.nodes[node_id].started_event
    burst.add("node.failed", payload, node_id=node_id, causation_id=cause)


def stop_nodes(run: ActiveRun, burst: Burst, reason: str) -> None:
    """Cancel every node that has started and not ended, and the children they wait for."""
    for node_id in burst.state.active():
        _cancel_children(run, burst, node_id)
        payload = {"nodeId": node_id, "reason": reason}
        burst.add("node.cancelled", payload, node_id=node_id)


def _cancel_children(run: ActiveRun, burst: Burst, node_id: str) -> None:
    """Cancel what this execution of a node has dispatched; a child that has ended stays as it is."""
    node = burst.state.nodes[node_id]
    for child, _ in node.children[node.borrowed :]:
        _cancel_child(run, burst, node_id, child)


def _cancel_child(run: ActiveRun, burst: Burst, node_id: str, child: str) -> None:
    """Leave a cancel wish on a node's child, unless its config says that it lives on."""
    config: Json = run.compiled.configs.get(node_id)
    if getattr(config, "propagate_cancellation", True):
        wish = CancelWish(reason="parent-cancelled", parent_run_id=run.state.identity.run_id)
        burst.wishes.append(Wish(run_id=child, body=msgspec.json.encode(wish)))


def settle(run: ActiveRun, burst: Burst, node_id: str, outcome: Outcome) -> None:
    """Append what came of a call of a node, or park it until its next call."""
    run.parked.pop(node_id, None)
    match outcome:
        case Completed(result, cause):
            complete(burst, node_id, result, cause)
        case Failed(error):
            if error.code == NODE_TIMEOUT:
                # Nobody waits for them any more, and the next attempt has its own.
                _cancel_children(run, burst, node_id)
            _fail_or_retry(burst, node_id, error)
        case Sleeping(until):
            deadline = node_deadline(burst.state, node_id)
            run.parked[node_id] = until if deadline is None else min(until, deadline)
        case Waiting():
            run.parked[node_id] = None
        case Suspended():
            fault = suspend(burst, node_id, outcome)
            if fault is not None:
                fail_node(burst, node_id, fault)
        case Breached():
            kind, limit, observed = outcome.kind, outcome.limit, outcome.observed
            breach(
                run,
                burst,
                Breach(kind, limit, observed, outcome.error, node_id, outcome.scope),
            )


def complete(burst: Burst, node_id: str, result: JsonObject, cause: str = "") -> None:
    """Append a node's completion, with the agent that it is pinned to."""
    agent = burst.state.graph.nodes[node_id].agent
    cause = cause or burst.state.nodes[node_id].started_event
    try:
        shown: Json = as_json(result, burst.limits) if result else {}
        payload: JsonObject = {"nodeId": node_id, "outputs": shown}
        if not isinstance(agent, Unset):
            payload["agent"] = msgspec.to_builtins(agent)
        burst.add("node.completed", payload, node_id=node_id, causation_id=cause)
    except NodeFailure as failure:
        _fail_or_retry(burst, node_id, failure.error)


def _fail_or_retry(burst: Burst, node_id: str, error: RunError) -> None:
    node = burst.state.graph.nodes[node_id]
    attempts = burst.state.nodes[node_id].attempt + 1
    may_retry = isinstance(error.retryable, Unset) or error.retryable
    if not may_retry or attempts > max_retries(burst.state, node):
        return fail_node(burst, node_id, error, attempts)
    payload: JsonObject = {
        "nodeId": node_id,
        "attempt": attempts,
        "delayMs": backoff_ms(node, attempts),
        "lastError": error_json(error),
    }
    cause = burst.state.nodes[node_id].started_event
    burst.add("node.retried", payload, node_id=node_id, causation_id=cause)
    return None


def is_current(state: RunState, node_id: str, started_event: str) -> bool:
    """Tell whether the log still waits for this very execution of the node."""
    node = state.nodes[node_id]
    return node.status == "running" and node.started_event == started_event


def cancel_run(run: ActiveRun, burst: Burst, wish: CancelWish) -> None:
    """Append a cancellation: of the nodes in flight, of all children, and of the run.

    A run that has ended stays as it is.
    """
    if burst.state.is_terminal:
        return
    stop_nodes(run, burst, wish.reason or "cancelled")
    told = {left.run_id for left in burst.wishes}
    for child, node_id in burst.state.children:
        if child not in told:
            _cancel_child(run, burst, node_id, child)
    payload: JsonObject = {"reason": wish.reason} if wish.reason else {}
    if wish.parent_run_id:
        payload["parentRunId"] = wish.parent_run_id
    burst.add("run.cancelled", payload)


def pause_now(burst: Burst, reason: str) -> None:
    """Append a pause that does not wait for the nodes in flight."""
    if burst.state.status != "running":
        raise Conflict(f"the run is {burst.state.status}", runStatus=burst.state.status)
    for node_id, node in burst.state.nodes.items():
        # A node that waits for children goes on waiting: a fresh attempt would start them twice.
        if node.status == "running" and not node.children:
            payload = {"nodeId": node_id, "reason": INTERRUPTED_BY_PAUSE}
            burst.add("node.cancelled", payload, node_id=node_id)
    paused: JsonObject = {"reason": reason} if reason else {}
    burst.add("run.paused", paused | {"drainPolicy": "immediate"})
