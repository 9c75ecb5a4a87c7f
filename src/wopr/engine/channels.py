"""Channels: how one write changes a value, and who may write it (Channels and reducers)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeAlias, TypeGuard, cast

from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.times import to_millis
from wopr.protocol.workflow import ChannelAccess

Access: TypeAlias = Literal["public", "private"] | ChannelAccess | Unset
Number: TypeAlias = int | float

LIST_REDUCERS: Final = frozenset({"append", "votes", "feedback", "message"})
TTL_REDUCERS: Final = frozenset({"append", "votes", "feedback"})


def reduce(
    current: Json, entry: Json, *, reducer: str, at: int, ttl_ms: int | None, max_size: int | None
) -> Json:
    """Fold one written entry into a channel's value and return the new value.

    Total: a value of the wrong shape counts as never written, and an entry of the wrong shape
    leaves a counter or an object as it is and joins a list as it stands. `at` is the event's time
    in milliseconds, so folding a log again gives the same value. A reducer that this host does not
    know folds as `replace`.
    """
    if reducer in LIST_REDUCERS:
        ttl = ttl_ms if ttl_ms and ttl_ms > 0 and reducer in TTL_REDUCERS else None
        kept = _listed(current) if ttl is None else _fresh(_listed(current), oldest=at - ttl)
        written = entry if ttl is None or _is_stamped(entry) else wrap(entry, at=at)
        return _trimmed(_joined(kept, written, reducer=reducer), max_size)
    if reducer == "merge":
        return {**_mapped(current), **_mapped(entry)}
    if reducer == "counter":
        return _sum(current if _is_number(current) else 0, entry)
    return entry


def wrap(value: Json, *, at: int) -> Json:
    """Stamp a written value as a channel with a time to live stores, shows and logs it."""
    return {"value": value, "_ts": at}


def as_written(value: Json, *, reducer: str) -> Json:
    """Complete a message of the later form; every other value stays as it is.

    There `agentId` or `role` names the sender and `timestamp` the time. The stored record has
    `from` and `ts` too.
    """
    if reducer != "message" or not _is_object(value):
        return value
    sender: Json = value.get("agentId", value.get("role"))
    stamp = _instant(value.get("timestamp"))
    filled: JsonObject = {}
    if value.get("from") is None and sender is not None:
        filled["from"] = sender
    if value.get("ts") is None and stamp is not None:
        filled["ts"] = stamp
    return value | filled


def _instant(value: Json) -> int | None:
    """The milliseconds of a time, which is a whole number or a text of ISO 8601."""
    if isinstance(value, str):
        try:
            return to_millis(value)
        except (ValueError, OverflowError):
            return None
    return value if _is_whole(value) else None


def check_write(value: Json, *, reducer: str, max_size: int | None, group: str = "") -> str | None:
    """Say what is wrong with a value before it is written, or `None` when it may be.

    A message of a node that shares the context of a group must name a group.
    The value is the node's own, not yet stamped. `maxSize` bounds what a write outside the list
    reducers may hold: characters of a text, items of a list, keys of an object; anything else
    has size 1.
    """
    shape = _SHAPES.get(reducer)
    wrong = shape(value) if shape is not None else None
    if wrong is None and group and reducer == "message" and "groupId" not in value:
        wrong = f"needs groupId, since its sender shares the context of the group {group!r}"
    if wrong is not None:
        return f"a {reducer} write {wrong}"
    if reducer in LIST_REDUCERS or max_size is None or _size(value) <= max_size:
        return None
    return f"a value of size {_size(value)} is over maxSize {max_size}"


def allows(
    access: Access, side: Literal["readers", "writers"], *, node_id: str, type_id: str
) -> bool:
    """Tell whether a node may use one side of a channel."""
    if isinstance(access, Unset) or access == "public":
        return True
    if access == "private":
        return False
    entries = access.readers if side == "readers" else access.writers
    if isinstance(entries, Unset):
        return True
    return any(entry == node_id or _names_type(entry, type_id) for entry in entries)


def _is_number(value: Json) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_object(value: Json) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def _is_stamped(entry: Json) -> TypeGuard[JsonObject]:
    return _is_object(entry) and entry.keys() == {"value", "_ts"} and _is_number(entry["_ts"])


def _is_list(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list)


def _listed(value: Json) -> list[Json]:
    return value if _is_list(value) else []


def _mapped(value: Json) -> JsonObject:
    return value if _is_object(value) else {}


def _fresh(entries: list[Json], *, oldest: int) -> list[Json]:
    # An entry without a stamp was written before the channel had a time to live: its age is
    # unknown, so it stays until maxSize drops it.
    return [entry for entry in entries if not _is_stamped(entry) or entry["_ts"] >= oldest]


def _joined(entries: list[Json], entry: Json, *, reducer: str) -> list[Json]:
    if reducer == "votes":
        voter = _id(entry, "userId")
        return [*(e for e in entries if voter is None or _id(e, "userId") != voter), entry]
    if reducer == "message":
        message_id = _id(entry, "messageId")
        if message_id is not None and any(_id(e, "messageId") == message_id for e in entries):
            return [*entries]
    return [*entries, entry]


def _id(entry: Json, name: str) -> str | None:
    body = entry["value"] if _is_stamped(entry) else entry
    found = body.get(name) if _is_object(body) else None
    return found if isinstance(found, str) else None


def _trimmed(entries: list[Json], max_size: int | None) -> list[Json]:
    return entries if max_size is None or max_size < 1 else entries[-max_size:]


def _sum(total: Number, entry: Json) -> Number:
    if not _is_number(entry):
        return total
    try:
        return total + entry
    except OverflowError:
        # A whole number beyond the reach of a double met a fraction.
        return total


def _size(value: Json) -> int:
    return len(cast("Collection[Json]", value)) if isinstance(value, str | list | dict) else 1


def _names_type(entry: str, type_id: str) -> bool:
    return entry == "*" or (entry.endswith(".*") and type_id.startswith(entry[:-1]))


def _counter_shape(value: Json) -> str | None:
    if not _is_number(value):
        return "must be a number"
    return None if math.isfinite(value) else "must be a finite number"


def _merge_shape(value: Json) -> str | None:
    return None if _is_object(value) else "must be an object"


def _is_time(value: Json) -> bool:
    return isinstance(value, str) or _is_number(value)


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_present(value: Json) -> bool:
    return value is not None


def _is_sender(value: Json) -> bool:
    return isinstance(value, str) and 3 <= len(value) <= 256


_Fields: TypeAlias = Mapping[str, tuple[Callable[[Json], bool], str]]

_A_TEXT: Final = "a string that is not empty"
_VOTE: Final[_Fields] = {
    "userId": (_is_text, _A_TEXT),
    "action": (_is_text, _A_TEXT),
    "timestamp": (_is_time, "a time"),
}
_FEEDBACK: Final[_Fields] = {
    "feedback": (_is_present, "a value"),
    "timestamp": (_is_time, "a time"),
    "iteration": (_is_number, "a number"),
}
_MESSAGE: Final[_Fields] = {
    "messageId": (_is_text, _A_TEXT),
    "from": (_is_sender, "an agent id of 3 to 256 characters or user"),
    "ts": (_is_whole, "a whole number of milliseconds since the epoch"),
}
# Members that a message may lack.
_OPTIONAL_TEXTS: Final[_Fields] = dict.fromkeys(("to", "groupId", "role"), (_is_text, _A_TEXT))
_LONGEST_SHOWN: Final = 60


def _fields_shape(value: Json, fields: _Fields) -> str | None:
    """Name every member that is missing or wrong."""
    if not _is_object(value):
        return "must be an object"
    faults = [
        f"needs {name}, {expected}{_found(value, name)}"
        for name, (is_right, expected) in fields.items()
        if not is_right(value.get(name))
    ]
    return "; ".join(faults) or None


def _found(value: JsonObject, name: str) -> str:
    if name not in value:
        return ""
    shown = encode(value[name]).decode()
    return f", not {shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + '…'}"


def _message_shape(value: Json) -> str | None:
    if not _is_object(value):
        return "must be an object"
    given = {name: rule for name, rule in _OPTIONAL_TEXTS.items() if name in value}
    # A message may say nothing, but it must say so: its content may be null and not absent.
    content: _Fields = {} if "content" in value else {"content": (_is_present, "any value")}
    return _fields_shape(value, {**_MESSAGE, **content, **given})


def _votes_shape(value: Json) -> str | None:
    wrong = _fields_shape(value, _VOTE)
    if wrong is None and not isinstance(value.get("reason", ""), str):
        return "takes a reason that is a text"
    return wrong


_SHAPES: Final[Mapping[str, Callable[[Json], str | None]]] = {
    "counter": _counter_shape,
    "merge": _merge_shape,
    "votes": _votes_shape,
    "feedback": lambda value: _fields_shape(value, _FEEDBACK),
    "message": _message_shape,
}
