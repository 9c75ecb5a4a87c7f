"""Helpers for the folds of all event families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.events import RunEvent

Change: TypeAlias = Callable[[RunState, RunEvent, JsonObject, int], RunState]


def read_member(payload: JsonObject, name: str, kind: type[Any], default: Json) -> Json:
    """Return a member of the payload if it has the expected type, else the default."""
    if name not in payload:
        return default
    try:
        return msgspec.convert(payload[name], kind)
    except (msgspec.ValidationError, ValueError):
        return default


def read_object(payload: JsonObject, name: str) -> JsonObject | None:
    """Return a member of the payload if it is an object, else None."""
    value = payload.get(name)
    return value if is_object(value) else None


def node_state_of(state: RunState, event: RunEvent) -> NodeState | None:
    """Return the node of an event; None when the event has no known node."""
    return state.nodes.get(event.node_id) if isinstance(event.node_id, str) else None


def with_node(state: RunState, event: RunEvent, **changes: Json) -> RunState:
    """Change the node of an event. An event without a known node changes nothing."""
    node_id, node = event.node_id, node_state_of(state, event)
    if node is None or isinstance(node_id, Unset):
        return state
    return replace(state, nodes={**state.nodes, node_id: replace(node, **changes)})
