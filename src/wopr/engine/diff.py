"""Comparison of two runs: a pure function of their logs and their states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from wopr.engine.snapshot import visible_variables
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject, is_list, is_object, json_equal
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import EventDiff

# A difference may contain names, but no text that looks like a credential.
_CREDENTIAL = re.compile(r"sk-|api[_-]?key|secret|bearer\s", re.IGNORECASE)
HIDDEN = "[REDACTED]"


def is_same_event(left: RunEvent, right: RunEvent) -> bool:
    """Return whether two events have the same content.

    Ids, times and causation are not compared.
    """
    return left.type == right.type and json_equal(left.payload, right.payload)


def event_diffs(a: Iterable[RunEvent], b: Iterable[RunEvent]) -> Iterator[EventDiff]:
    """Yield every position at which two logs differ, in order."""
    for left, right in zip_longest(a, b):
        if left is None and right is not None:
            yield EventDiff(seq=right.sequence, op="added", b_event=_event_content(right))
        elif right is None and left is not None:
            yield EventDiff(seq=left.sequence, op="removed", a_event=_event_content(left))
        elif left is not None and right is not None and not is_same_event(left, right):
            yield EventDiff(
                seq=left.sequence,
                op="changed",
                a_event=_event_content(left),
                b_event=_event_content(right),
            )


def _event_content(event: RunEvent) -> JsonObject:
    shown: JsonObject = {"type": event.type, "payload": event.payload}
    if event.node_id is not UNSET:
        shown["nodeId"] = event.node_id
    return shown


def state_diff(a: RunState, b: RunState) -> JsonObject:
    """Return the differences of two states: status, error, outputs, variables and channels."""
    found: JsonObject = {}
    pairs: tuple[tuple[str, Json, Json], ...] = (
        ("status", a.status, b.status),
        ("error", a.error and a.error.code, b.error and b.error.code),
        ("outputs", a.outputs or {}, b.outputs or {}),
        ("variables", visible_variables(a), visible_variables(b)),
        ("channels", a.channels, b.channels),
    )
    for name, left, right in pairs:
        if json_equal(left, right):
            continue
        found[name] = (
            _member_diffs(left, right)
            if is_object(left) and is_object(right)
            else {"a": left, "b": right}
        )
    clean: JsonObject = _redact(found)
    return clean


def _member_diffs(left: JsonObject, right: JsonObject) -> JsonObject:
    changed: JsonObject = {}
    for name in sorted(left.keys() | right.keys()):
        if name in left and name in right and json_equal(left[name], right[name]):
            continue
        changed[name] = {
            side: values[name] for side, values in (("a", left), ("b", right)) if name in values
        }
    return changed


def _redact(value: Json) -> Json:
    if is_object(value):
        return {_redact(name): _redact(member) for name, member in value.items()}
    if is_list(value):
        return [_redact(item) for item in value]
    return HIDDEN if isinstance(value, str) and _CREDENTIAL.search(value) else value
