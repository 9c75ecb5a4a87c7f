"""Events that end, stop or pause the nodes of a run, and the run itself."""

from __future__ import annotations

import msgspec

from wopr.engine.fold.fold import INTERRUPTED_BY_PAUSE
from wopr.engine.limits import backoff_ms, max_retries
from wopr.engine.outcome import NodeFailure
from wopr.engine.plan import Breach
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import RunError
from wopr.runs.active import ActiveRun, PendingCancel
from wopr.runs.append import EventBatch, as_json
from wopr.store.port import PendingCommand

# A larger error is reduced to its code and the beginning of its message.
MAX_ERROR_BYTES = 256 * 1024
MAX_MESSAGE_LENGTH = 4000


def error_json(error: RunError) -> JsonObject:
    """Return an error as a member of a payload."""
    plain: JsonObject = msgspec.to_builtins(error)
    if len(msgspec.json.encode(plain)) > MAX_ERROR_BYTES:
        # The error of a node may repeat all of its data.
        plain = {"code": error.code, "message": f"{error.message[:MAX_MESSAGE_LENGTH]}…"}
        if not isinstance(error.retryable, Unset):
            plain["retryable"] = error.retryable
    return plain


def is_current(state: RunState, node_id: str, started_event: str) -> bool:
    """Return whether the log still waits for this execution of the node."""
    node = state.nodes[node_id]
    return node.status == "running" and node.started_event == started_event


def complete_node(batch: EventBatch, node_id: str, result: JsonObject, cause: str = "") -> None:
    """Append the completion of a node, with the agent that it is pinned to."""
    agent = batch.state.graph.nodes[node_id].agent
    cause = cause or batch.state.nodes[node_id].started_event
    try:
        outputs: Json = as_json(result, batch.rules.limits) if result else {}
        payload: JsonObject = {"nodeId": node_id, "outputs": outputs}
        if not isinstance(agent, Unset):
            payload["agent"] = msgspec.to_builtins(agent)
        batch.add("node.completed", payload, node_id=node_id, causation_id=cause)
    except NodeFailure as failure:
        fail_or_retry_node(batch, node_id, failure.error)


def fail_node(batch: EventBatch, node_id: str, error: RunError, attempts: int = 1) -> None:
    """Append the final failure of a node."""
    payload = {"nodeId": node_id, "error": error_json(error), "attempts": attempts}
    cause = batch.state.nodes[node_id].started_event
    batch.add("node.failed", payload, node_id=node_id, causation_id=cause)


def fail_or_retry_node(batch: EventBatch, node_id: str, error: RunError) -> None:
    """Append the failure of an attempt, and whether another one follows."""
    node = batch.state.graph.nodes[node_id]
    attempts = batch.state.nodes[node_id].attempt + 1
    may_retry = isinstance(error.retryable, Unset) or error.retryable
    if not may_retry or attempts > max_retries(batch.state, node):
        fail_node(batch, node_id, error, attempts)
        return
    payload: JsonObject = {
        "nodeId": node_id,
        "attempt": attempts,
        "delayMs": backoff_ms(node, attempts),
        "lastError": error_json(error),
    }
    cause = batch.state.nodes[node_id].started_event
    batch.add("node.retried", payload, node_id=node_id, causation_id=cause)


def stop_nodes(run: ActiveRun, batch: EventBatch, reason: str) -> None:
    """Cancel every node that has started and not ended, and the children it waits for."""
    for node_id in batch.state.active_nodes():
        cancel_children(run, batch, node_id)
        payload = {"nodeId": node_id, "reason": reason}
        batch.add("node.cancelled", payload, node_id=node_id)


def cancel_children(run: ActiveRun, batch: EventBatch, node_id: str) -> None:
    """Cancel the child runs of this execution of a node. A child that has ended does not change."""
    node = batch.state.nodes[node_id]
    for child, _ in node.children[node.inherited_children :]:
        _cancel_child(run, batch, node_id, child)


def _cancel_child(run: ActiveRun, batch: EventBatch, node_id: str, child: str) -> None:
    """Add a command that cancels a child run, unless the config of the node excludes it."""
    config: Json = run.compiled.configs.get(node_id)
    if getattr(config, "propagate_cancellation", True):
        command = PendingCancel(reason="parent-cancelled", parent_run_id=run.state.identity.run_id)
        batch.commands.append(PendingCommand(run_id=child, body=msgspec.json.encode(command)))


def breach_limit(run: ActiveRun, batch: EventBatch, step: Breach) -> None:
    """Stop the nodes in flight, append which limit was reached, and fail the run."""
    stop_nodes(run, batch, step.error.code)
    payload: JsonObject = {"kind": step.kind, "limit": step.limit, "observed": step.observed}
    if step.node_id is not None:
        payload["nodeId"] = step.node_id
    if step.scope:
        payload["scope"] = step.scope
    batch.add("cap.breached", payload, node_id=step.node_id or "")
    batch.add("run.failed", {"error": error_json(step.error)})


def fail_run(run: ActiveRun, batch: EventBatch, error: RunError, reason: str) -> None:
    """Stop the nodes in flight, with a reason, and fail the run."""
    stop_nodes(run, batch, reason)
    batch.add("run.failed", {"error": error_json(error)})


def cancel_run(run: ActiveRun, batch: EventBatch, command: PendingCancel) -> None:
    """Cancel the nodes in flight, all child runs, and the run. Leave a run that has ended."""
    if batch.state.is_terminal:
        return
    stop_nodes(run, batch, command.reason or "cancelled")
    addressed = {sent.run_id for sent in batch.commands}
    for child, node_id in batch.state.children:
        if child not in addressed:
            _cancel_child(run, batch, node_id, child)
    payload: JsonObject = {"reason": command.reason} if command.reason else {}
    if command.parent_run_id:
        payload["parentRunId"] = command.parent_run_id
    batch.add("run.cancelled", payload)


def pause_now(batch: EventBatch, reason: str) -> None:
    """Append a pause that does not wait for the nodes in flight."""
    for node_id, node in batch.state.nodes.items():
        # A node that waits for child runs keeps waiting: a new attempt would start them twice.
        if node.status == "running" and not node.children:
            payload = {"nodeId": node_id, "reason": INTERRUPTED_BY_PAUSE}
            batch.add("node.cancelled", payload, node_id=node_id)
    paused: JsonObject = {"reason": reason} if reason else {}
    batch.add("run.paused", paused | {"drainPolicy": "immediate"})
