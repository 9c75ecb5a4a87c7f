"""What the folds of all event families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from wopr.engine.expression_tokens import is_object
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.events import RunEvent

Change: TypeAlias = Callable[[RunState, RunEvent, JsonObject, int], RunState]


def read(payload: JsonObject, name: str, kind: type[Any], default: Json) -> Json:
    """A member of the payload when it has the right shape, else the default."""
    if name not in payload:
        return default
    try:
        return msgspec.convert(payload[name], kind)
    except (msgspec.ValidationError, ValueError):
        return default


def read_object(payload: JsonObject, name: str) -> JsonObject | None:
    """A member of the payload when it is an object."""
    value = payload.get(name)
    return value if is_object(value) else None


def with_node(state: RunState, event: RunEvent, **changes: Json) -> RunState:
    """Change the node that the event is about; an event about no known node changes nothing."""
    node_id = event.node_id
    node = None if isinstance(node_id, Unset) else state.nodes.get(node_id)
    if node is None or isinstance(node_id, Unset):
        return state
    return replace(state, nodes={**state.nodes, node_id: replace(node, **changes)})
