"""`fold`: the function that applies an event to the state of a run. No event makes it fail."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from wopr.engine.channels import context_channel, messages_in, reduce
from wopr.engine.fold import agents as fold_agents
from wopr.engine.fold import interrupts as fold_interrupts
from wopr.engine.fold.agents import bind_agent
from wopr.engine.fold.interrupts import status_of, with_current_status
from wopr.engine.fold.payload import Change, node_state_of, read_member, read_object, with_node
from wopr.engine.state import RunState, is_copied_by_branch, is_history, time_shift
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, is_object, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import Owner, RunError

INTERRUPTED_BY_PAUSE = "paused"
INTERRUPTED_BY_FORK = "forked"
# Reasons for which a cancelled node gets a new attempt.
INTERRUPTIONS = frozenset({INTERRUPTED_BY_PAUSE, INTERRUPTED_BY_FORK})

_ERROR_KEYS = ("code", "message", "details", "retryable")


def fold(state: RunState, event: RunEvent) -> RunState:
    """Apply one event. Every event advances the sequence."""
    at = _instant(event.timestamp, state.updated_at) + time_shift(state.identity, event.sequence)
    change = _CHANGES.get(event.type)
    if change is not None and is_object(event.payload):
        state = with_current_status(change(state, event, event.payload, at))
    if not isinstance(event.code_version, Unset):
        state = with_node(state, event, code_version=event.code_version)
    return replace(
        state,
        next_sequence=event.sequence + 1,
        updated_at=at,
        last_event_id=event.event_id,
    )


def keeps_payload(event_type: str) -> bool:
    """Return whether the state of a run can contain the payload of this event type."""
    return event_type in _CHANGES and event_type != "output.chunk"


def fold_all(state: RunState, events: Iterable[RunEvent]) -> RunState:
    """Apply a sequence of events."""
    for event in events:
        state = fold(state, event)
    return state


def _instant(timestamp: str, fallback: int) -> int:
    try:
        return to_millis(timestamp)
    except (ValueError, TypeError, OverflowError):
        return fallback


def _run_started(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    inputs = read_object(payload, "inputs") or {}
    state = replace(
        state,
        status="running",
        started_at=at,
        inputs=inputs,
        variables=state.graph.masked_variables | inputs,
        channels=dict(state.graph.masked_channels),
        configurable=read_object(payload, "configurable") or {},
        tags=read_member(payload, "tags", tuple[str, ...], ()),
        metadata=read_object(payload, "metadata") or {},
        owner=read_member(payload, "owner", Owner, None),
        engine_version=read_member(payload, "engineVersion", str, ""),
        traceparent=read_member(payload, "traceparent", str, ""),
    )
    return _with_overlay(state)


def _with_overlay(state: RunState) -> RunState:
    """Apply the changed options of a branch. The copied events have the options of the source."""
    fork = state.identity.fork
    if fork is None or fork.overlay.is_empty:
        return state
    overlay = fork.overlay
    return replace(
        state,
        configurable=state.configurable | overlay.configurable,
        tags=tuple(overlay.tags) or state.tags,
        metadata=state.metadata | overlay.metadata,
    )


def _run_completed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    outputs = read_object(payload, "outputs")
    return replace(state, status="completed", ended_at=at, outputs=outputs)


def _run_failed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    return replace(state, status="failed", ended_at=at, error=_error(payload))


def _run_cancelled(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    by_parent = "parentRunId" in payload
    return replace(state, status="cancelled", ended_at=at, cancelled_by_parent=by_parent)


def _run_paused(state: RunState, event: RunEvent, _: JsonObject, at: int) -> RunState:
    # A branch does not inherit its source's pause.
    if state.is_terminal or is_copied_by_branch(state.identity, event.sequence):
        return state
    return replace(state, status="paused", paused_at=at, last_command=event.sequence)


def _run_resumed(state: RunState, event: RunEvent, _: JsonObject, at: int) -> RunState:
    if state.is_terminal:
        return state
    status = status_of(state.nodes)
    return replace(state, status=status, paused_at=0, last_command=event.sequence)


def _error(payload: JsonObject, name: str = "error") -> RunError:
    """Return the error of an event, without unknown keys."""
    members = payload.get(name)
    known = {k: members[k] for k in _ERROR_KEYS if k in members} if is_object(members) else {}
    try:
        return msgspec.convert(known, RunError)
    except msgspec.ValidationError:
        return RunError(code="internal_error", message="the event has no valid error")


def _node_started(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node_id = event.node_id
    if isinstance(node_id, Unset) or node_id not in state.nodes:
        return state
    before = state.nodes[node_id]
    again = before.status in ("completed", "skipped", "failed")
    attempt = read_member(payload, "attempt", int, 0)
    channel = context_channel(state.graph.nodes[node_id].config)
    if again and node_id in state.graph.loops:
        state = _reset_loop(state, node_id)
    node = replace(
        state.nodes[node_id],
        status="running",
        attempt=attempt,
        iteration=before.iteration + again,
        visit=before.visit + (bool(before.started_event) and not attempt),
        started_at=at,
        ended_at=0,
        started_event=event.event_id,
        error=None,
        children=(),
        inherited_children=0,
        chunks=0,
        chain=(),
        handed_to="",
        agent_decisions=(),
        open_calls={},
        # A retry keeps the decision and the calls of this execution.
        decision=before.decision if attempt else None,
        model_calls=before.model_calls if attempt else 0,
        tool_returns=before.tool_returns if attempt else 0,
        context_messages=0 if channel is None else len(messages_in(state.channels, channel)),
        invocation_id="",
        interrupt=None,
    )
    state = bind_agent(state, node_id)
    return replace(state, nodes={**state.nodes, node_id: node}, executions=state.executions + 1)


def _reset_loop(state: RunState, head: str) -> RunState:
    """Start the next iteration of a loop: reset its members and the counters of inner loops."""
    fresh = {
        member: replace(
            state.nodes[member],
            status="pending",
            attempt=0,
            iteration=0,
            refinements=0,
            error=None,
            children=(),
        )
        for member in state.graph.loops[head].members
    }
    return replace(state, nodes={**state.nodes, **fresh})


def _node_completed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    outputs = read_object(payload, "outputs") or {}
    return with_node(
        state,
        event,
        status="completed",
        ended_at=at,
        outputs=outputs,
        error=None,
        # A later iteration of the node starts without it.
        feedback=None,
    )


def _node_failed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    return with_node(state, event, status="failed", ended_at=at, error=_error(payload))


def _node_retried(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    delay = read_member(payload, "delayMs", int, 0)
    attempt = read_member(payload, "attempt", int, 1)
    error = _error(payload, "lastError") if "lastError" in payload else None
    return with_node(
        state, event, status="retrying", attempt=attempt, retry_at=at + delay, error=error
    )


def _node_skipped(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    reason = read_member(payload, "reason", str, "")
    return with_node(state, event, status="skipped", ended_at=at, reason=reason)


def _node_cancelled(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    reason = read_member(payload, "reason", str, "")
    node = node_state_of(state, event)
    if node is not None and reason in INTERRUPTIONS:
        return with_node(state, event, status="retrying", attempt=node.attempt + 1, retry_at=at)
    return with_node(state, event, status="cancelled", ended_at=at, reason=reason)


def _node_dispatched(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    child = read_member(payload, "childRunId", str, "")
    workflow = read_member(payload, "childWorkflowId", str, "")
    node = node_state_of(state, event)
    if not child or node is None:
        return state
    if state.graph.nodes[str(event.node_id)].type_id == fold_agents.DISPATCH:
        state = replace(state, last_worker=workflow)
    children = (*node.children, (child, workflow))
    if is_history(state.identity, event.sequence):
        return with_node(
            state, event, children=children, inherited_children=node.inherited_children + 1
        )
    state = replace(state, children=(*state.children, (child, str(event.node_id))))
    return with_node(state, event, children=children)


def _output_chunk(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = node_state_of(state, event)
    return state if node is None else with_node(state, event, chunks=node.chunks + 1)


def _variable_changed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    name = read_member(payload, "name", str, "")
    if not name:
        return state
    if "next" not in payload:
        return replace(state, variables={k: v for k, v in state.variables.items() if k != name})
    return replace(state, variables={**state.variables, name: payload["next"]})


def _channel_written(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    channel = read_member(payload, "channel", str, "")
    if not channel or "value" not in payload:
        return state
    ttl_ms, max_size = channel_limits(state, channel, payload.get("nodeId"))
    folded = reduce(
        state.channels.get(channel, UNSET),
        payload["value"],
        reducer=read_member(payload, "reducer", str, "replace"),
        at=at,
        ttl_ms=ttl_ms,
        max_size=max_size,
    )
    return replace(state, channels={**state.channels, channel: folded})


def channel_limits(state: RunState, channel: str, node_id: Json) -> tuple[int | None, int | None]:
    """Return the TTL and the size limit of a channel: as declared, else of the writing node."""
    declared = state.graph.channels.get(channel)
    if declared is not None:
        ttl_ms = None if isinstance(declared.ttl_ms, Unset) else declared.ttl_ms
        return ttl_ms, None if isinstance(declared.max_size, Unset) else declared.max_size
    node = state.graph.nodes.get(node_id) if isinstance(node_id, str) else None
    config = {} if node is None else node.config
    return read_member(config, "ttlMs", int, None) or None, read_member(
        config, "maxSize", int, None
    ) or None


def _version_pinned(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    change_id = read_member(payload, "changeId", str, "")
    version = read_member(payload, "version", int, None)
    if not change_id or version is None:
        return state
    return replace(state, pins={**state.pins, change_id: version})


_CHANGES: dict[str, Change] = {
    "run.started": _run_started,
    "run.completed": _run_completed,
    "run.failed": _run_failed,
    "run.cancelled": _run_cancelled,
    "run.paused": _run_paused,
    "run.resumed": _run_resumed,
    "node.started": _node_started,
    "node.completed": _node_completed,
    "node.failed": _node_failed,
    "node.retried": _node_retried,
    "node.skipped": _node_skipped,
    "node.cancelled": _node_cancelled,
    "node.dispatched": _node_dispatched,
    "output.chunk": _output_chunk,
    "variable.changed": _variable_changed,
    "channel.written": _channel_written,
    "version.pinned": _version_pinned,
    **fold_agents.CHANGES,
    **fold_interrupts.CHANGES,
}
