"""`fold`: the only way a run's state changes. Total: no event, however odd, makes it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from wopr.engine.channels import reduce
from wopr.engine.expression_tokens import is_object
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import Owner, RunError
from wopr.protocol.times import to_millis

INTERRUPTED_BY_PAUSE = "paused"

_ERROR_KEYS = ("code", "message", "details", "retryable")

Change: TypeAlias = Callable[[RunState, RunEvent, JsonObject, int], RunState]


def fold(state: RunState, event: RunEvent) -> RunState:
    """Apply one event. An event of a type that changes nothing only moves the sequence on."""
    at = _instant(event.timestamp, state.updated_at)
    change = _CHANGES.get(event.type)
    if change is not None and is_object(event.payload):
        state = change(state, event, event.payload, at)
    return replace(
        state,
        next_sequence=event.sequence + 1,
        updated_at=at,
        last_event_id=event.event_id,
    )


def fold_all(state: RunState, events: Iterable[RunEvent]) -> RunState:
    """Apply a stretch of the log."""
    for event in events:
        state = fold(state, event)
    return state


def _instant(timestamp: str, fallback: int) -> int:
    try:
        return to_millis(timestamp)
    except (ValueError, TypeError, OverflowError):
        return fallback


def _read(payload: JsonObject, name: str, kind: type[Any], default: Json) -> Json:
    """A member of the payload when it has the right shape, else the default."""
    if name not in payload:
        return default
    try:
        return msgspec.convert(payload[name], kind)
    except (msgspec.ValidationError, ValueError):
        return default


def _object(payload: JsonObject, name: str) -> JsonObject | None:
    """A member of the payload when it is an object."""
    value = payload.get(name)
    return value if is_object(value) else None


def _with_node(state: RunState, event: RunEvent, **changes: Json) -> RunState:
    node_id = event.node_id
    node = None if isinstance(node_id, Unset) else state.nodes.get(node_id)
    if node is None or isinstance(node_id, Unset):
        return state
    return replace(state, nodes={**state.nodes, node_id: replace(node, **changes)})


def _run_started(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    inputs = _object(payload, "inputs") or {}
    return replace(
        state,
        status="running",
        started_at=at,
        inputs=inputs,
        variables=state.graph.shown_variables | inputs,
        channels=dict(state.graph.shown_channels),
        configurable=_object(payload, "configurable") or {},
        tags=_read(payload, "tags", tuple[str, ...], ()),
        metadata=_object(payload, "metadata") or {},
        owner=_read(payload, "owner", Owner, None),
        engine_version=_read(payload, "engineVersion", str, ""),
        traceparent=_read(payload, "traceparent", str, ""),
    )


def _run_completed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    outputs = _object(payload, "outputs")
    return replace(state, status="completed", ended_at=at, outputs=outputs)


def _run_failed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    return replace(state, status="failed", ended_at=at, error=_error(payload))


def _run_cancelled(state: RunState, _: RunEvent, __: JsonObject, at: int) -> RunState:
    return replace(state, status="cancelled", ended_at=at)


def _run_paused(state: RunState, _: RunEvent, __: JsonObject, at: int) -> RunState:
    return state if state.is_terminal else replace(state, status="paused", paused_at=at)


def _run_resumed(state: RunState, _: RunEvent, __: JsonObject, at: int) -> RunState:
    return state if state.is_terminal else replace(state, status="running", paused_at=0)


def _error(payload: JsonObject, name: str = "error") -> RunError:
    """The error of an event; keys that another host added are left out."""
    members = payload.get(name)
    known = {k: members[k] for k in _ERROR_KEYS if k in members} if is_object(members) else {}
    try:
        return msgspec.convert(known, RunError)
    except msgspec.ValidationError:
        return RunError(code="internal_error", message="the event carries no readable error")


def _node_started(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node_id = event.node_id
    if isinstance(node_id, Unset) or node_id not in state.nodes:
        return state
    before = state.nodes[node_id]
    again = before.status in ("completed", "skipped", "failed")
    if again and node_id in state.graph.loops:
        state = _reset_loop(state, node_id)
    node = replace(
        state.nodes[node_id],
        status="running",
        attempt=_read(payload, "attempt", int, 0),
        iteration=before.iteration + again,
        started_at=at,
        started_event=event.event_id,
        error=None,
        children=(),
        chunks=0,
    )
    return replace(state, nodes={**state.nodes, node_id: node}, executions=state.executions + 1)


def _reset_loop(state: RunState, head: str) -> RunState:
    """A loop's head starts again: all its members wait for the round, and inner loops count anew."""
    fresh = {
        member: replace(
            state.nodes[member], status="pending", attempt=0, iteration=0, error=None, children=()
        )
        for member in state.graph.loops[head].members
    }
    return replace(state, nodes={**state.nodes, **fresh})


def _node_completed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    outputs = _object(payload, "outputs") or {}
    return _with_node(state, event, status="completed", ended_at=at, outputs=outputs, error=None)


def _node_failed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    return _with_node(state, event, status="failed", ended_at=at, error=_error(payload))


def _node_retried(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    delay = _read(payload, "delayMs", int, 0)
    attempt = _read(payload, "attempt", int, 1)
    error = _error(payload, "lastError") if "lastError" in payload else None
    return _with_node(
        state, event, status="retrying", attempt=attempt, retry_at=at + delay, error=error
    )


def _node_skipped(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    reason = _read(payload, "reason", str, "")
    return _with_node(state, event, status="skipped", ended_at=at, reason=reason)


def _node_cancelled(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    reason = _read(payload, "reason", str, "")
    node = state.nodes.get(event.node_id) if isinstance(event.node_id, str) else None
    if node is not None and reason == INTERRUPTED_BY_PAUSE:
        # An immediate pause gives the node a fresh attempt once the run is resumed.
        return _with_node(state, event, status="retrying", attempt=node.attempt + 1, retry_at=at)
    return _with_node(state, event, status="cancelled", ended_at=at, reason=reason)


def _node_suspended(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    return _with_node(state, event, status="suspended")


def _node_resumed(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    return _with_node(state, event, status="running")


def _node_dispatched(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    child = _read(payload, "childRunId", str, "")
    workflow = _read(payload, "childWorkflowId", str, "")
    node = state.nodes.get(event.node_id) if isinstance(event.node_id, str) else None
    if not child or node is None:
        return state
    return _with_node(state, event, children=(*node.children, (child, workflow)))


def _output_chunk(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    node = state.nodes.get(event.node_id) if isinstance(event.node_id, str) else None
    return state if node is None else _with_node(state, event, chunks=node.chunks + 1)


def _variable_changed(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    name = _read(payload, "name", str, "")
    if not name:
        return state
    if "next" not in payload:
        return replace(state, variables={k: v for k, v in state.variables.items() if k != name})
    return replace(state, variables={**state.variables, name: payload["next"]})


def _channel_written(state: RunState, event: RunEvent, payload: JsonObject, at: int) -> RunState:
    channel = _read(payload, "channel", str, "")
    if not channel or "value" not in payload:
        return state
    ttl_ms, max_size = channel_limits(state, channel, payload.get("nodeId"))
    folded = reduce(
        state.channels.get(channel, UNSET),
        payload["value"],
        reducer=_read(payload, "reducer", str, "replace"),
        at=at,
        ttl_ms=ttl_ms,
        max_size=max_size,
    )
    return replace(state, channels={**state.channels, channel: folded})


def channel_limits(state: RunState, channel: str, node_id: Json) -> tuple[int | None, int | None]:
    """TTL and size of a channel: from its declaration, or from the node that writes it undeclared."""
    declared = state.graph.channels.get(channel)
    if declared is not None:
        ttl_ms = None if isinstance(declared.ttl_ms, Unset) else declared.ttl_ms
        return ttl_ms, None if isinstance(declared.max_size, Unset) else declared.max_size
    node = state.graph.nodes.get(node_id) if isinstance(node_id, str) else None
    config = {} if node is None else node.config
    return _read(config, "ttlMs", int, None) or None, _read(config, "maxSize", int, None) or None


def _version_pinned(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    change_id = _read(payload, "changeId", str, "")
    version = _read(payload, "version", int, None)
    if not change_id or version is None:
        return state
    return replace(state, pins={**state.pins, change_id: version})


def _provider_usage(state: RunState, _: RunEvent, payload: JsonObject, at: int) -> RunState:
    """Add up `metrics.openwopCost`; provider and model are those of the last call."""
    past = state.usage or {}
    tokens = past.get("tokens", {"input": 0, "output": 0})
    usage: JsonObject = {
        "tokens": {
            "input": tokens["input"] + _read(payload, "inputTokens", int, 0),
            "output": tokens["output"] + _read(payload, "outputTokens", int, 0),
        },
        "provider": _read(payload, "provider", str, "unknown"),
        "model": _read(payload, "model", str, "unknown"),
    }
    usd = past.get("usd", 0) + _read(payload, "costEstimateUsd", float, 0)
    return replace(state, usage=usage | {"usd": usd} if usd else usage)


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
    "node.suspended": _node_suspended,
    "node.resumed": _node_resumed,
    "node.dispatched": _node_dispatched,
    "output.chunk": _output_chunk,
    "variable.changed": _variable_changed,
    "channel.written": _channel_written,
    "version.pinned": _version_pinned,
    "provider.usage": _provider_usage,
}
