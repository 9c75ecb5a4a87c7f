"""Compares two runs: a pure function of their logs and of what they fold to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from wopr.engine.expression_tokens import is_list, is_object
from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import EventDiff

# A difference may name things; it must never look like a credential.
_TELLTALE = re.compile(r"sk-|api[_-]?key|secret|bearer\s", re.IGNORECASE)
HIDDEN = "[REDACTED]"


def same(left: Json, right: Json) -> bool:
    """JSON equality: 1 and 1.0 are one number, true and 1 are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if is_object(left) and is_object(right):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(same, left, right))
    return (type(left) is type(right) and left == right) or _same_number(left, right)


def _same_number(left: Json, right: Json) -> bool:
    return isinstance(left, int | float) and isinstance(right, int | float) and left == right


def is_same_event(left: RunEvent, right: RunEvent) -> bool:
    """Whether two events say the same; who, when and why they were written is not compared."""
    return left.type == right.type and same(left.payload, right.payload)


def event_diffs(a: Iterable[RunEvent], b: Iterable[RunEvent]) -> Iterator[EventDiff]:
    """Every place where two logs differ, in order."""
    for left, right in zip_longest(a, b):
        if left is None and right is not None:
            yield EventDiff(seq=right.sequence, op="added", b_event=_shown(right))
        elif right is None and left is not None:
            yield EventDiff(seq=left.sequence, op="removed", a_event=_shown(left))
        elif left is not None and right is not None and not is_same_event(left, right):
            yield EventDiff(
                seq=left.sequence, op="changed", a_event=_shown(left), b_event=_shown(right)
            )


def _shown(event: RunEvent) -> JsonObject:
    shown: JsonObject = {"type": event.type, "payload": event.payload}
    if event.node_id is not UNSET:
        shown["nodeId"] = event.node_id
    return shown


def state_diff(a: RunState, b: RunState) -> JsonObject:
    """How what two runs came to differs: status, error, outputs, variables and channels."""
    found: JsonObject = {}
    pairs: tuple[tuple[str, Json, Json], ...] = (
        ("status", a.status, b.status),
        ("error", a.error and a.error.code, b.error and b.error.code),
        ("outputs", a.outputs or {}, b.outputs or {}),
        ("variables", visible_variables(a), visible_variables(b)),
        ("channels", a.channels, b.channels),
    )
    for name, left, right in pairs:
        if same(left, right):
            continue
        found[name] = (
            _members(left, right)
            if is_object(left) and is_object(right)
            else {"a": left, "b": right}
        )
    hidden: JsonObject = _hidden(found)
    return hidden


def _members(left: JsonObject, right: JsonObject) -> JsonObject:
    changed: JsonObject = {}
    for name in sorted(left.keys() | right.keys()):
        if name in left and name in right and same(left[name], right[name]):
            continue
        changed[name] = {
            side: values[name] for side, values in (("a", left), ("b", right)) if name in values
        }
    return changed


def _hidden(value: Json) -> Json:
    if is_object(value):
        return {_hidden(name): _hidden(member) for name, member in value.items()}
    if is_list(value):
        return [_hidden(item) for item in value]
    return HIDDEN if isinstance(value, str) and _TELLTALE.search(value) else value
