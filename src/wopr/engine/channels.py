"""Channels and reducers: how a write changes a value, and which nodes may write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeAlias, TypeGuard, cast

from wopr.engine.fold.payload import read_member
from wopr.protocol.documents import (
    Json,
    JsonObject,
    Unset,
    encode,
    is_object,
    list_of,
    object_of,
    to_millis,
)
from wopr.protocol.workflow import ChannelAccess

Access: TypeAlias = Literal["public", "private"] | ChannelAccess | Unset
Number: TypeAlias = int | float

LIST_REDUCERS: Final = frozenset({"append", "votes", "feedback", "message"})
TTL_REDUCERS: Final = frozenset({"append", "votes", "feedback"})
# Values of `agentSharing` in the config of a node. `shared:<group>` shares with a group.
ISOLATED: Final = "isolated"
SHARED: Final = "shared"
# The channel of the run's context. The channel of a group's context adds a colon and the group id.
CONTEXT_CHANNEL: Final = "agentContext"


def reduce(
    current: Json, entry: Json, *, reducer: str, at: int, ttl_ms: int | None, max_size: int | None
) -> Json:
    """Fold one written entry into a channel's value and return the new value.

    It never fails. A current value of the wrong type counts as never written. An entry of the wrong
    type leaves a counter or an object unchanged and is appended to a list. `at` is the event's time
    in milliseconds, so folding a log again gives the same value. An unknown reducer folds as
    `replace`.
    """
    if reducer in LIST_REDUCERS:
        ttl = ttl_ms if ttl_ms and ttl_ms > 0 and reducer in TTL_REDUCERS else None
        kept = list_of(current) if ttl is None else _drop_expired(list_of(current), oldest=at - ttl)
        written = entry if ttl is None or _is_stamped(entry) else wrap(entry, at=at)
        return _trim(_add_entry(kept, written, reducer=reducer), max_size)
    if reducer == "merge":
        return {**object_of(current), **object_of(entry)}
    if reducer == "counter":
        return _sum(current if _is_number(current) else 0, entry)
    return entry


def wrap(value: Json, *, at: int) -> Json:
    """Return a written value with its timestamp, as a channel with a time to live stores it."""
    return {"value": value, "_ts": at}


def complete_message(value: Json, *, reducer: str) -> Json:
    """Return a message with `from` and `ts`; any other value unchanged.

    A message of the later form has the sender in `agentId` or `role` and the time in `timestamp`.
    """
    if reducer != "message" or not is_object(value):
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
    """Return a time in milliseconds, given as a whole number or as ISO 8601 text."""
    if isinstance(value, str):
        try:
            return to_millis(value)
        except (ValueError, OverflowError):
            return None
    return value if _is_whole(value) else None


def check_write(value: Json, *, reducer: str, max_size: int | None, group: str = "") -> str | None:
    """Return what is wrong with a value that a node writes, or None.

    A message of a node that shares the context of a group must name a group. `maxSize` limits a
    write without a list reducer: characters of a text, items of a list, keys of an object. Any
    other value has size 1.
    """
    check = _CHECKS.get(reducer)
    wrong = check(value) if check is not None else None
    if wrong is None and group and reducer == "message" and "groupId" not in value:
        wrong = f"needs groupId, since its sender shares the context of the group {group!r}"
    if wrong is not None:
        return f"a {reducer} write {wrong}"
    if reducer in LIST_REDUCERS or max_size is None or _size(value) <= max_size:
        return None
    return f"a value of size {_size(value)} is over maxSize {max_size}"


def allows_access(
    access: Access, side: Literal["readers", "writers"], *, node_id: str, type_id: str
) -> bool:
    """Return whether a node may read or write a channel."""
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


def _is_stamped(entry: Json) -> TypeGuard[JsonObject]:
    return is_object(entry) and entry.keys() == {"value", "_ts"} and _is_number(entry["_ts"])


def _drop_expired(entries: list[Json], *, oldest: int) -> list[Json]:
    # An entry without a timestamp was written before the channel had a time to live. Its age is
    # unknown, so it stays until maxSize drops it.
    return [entry for entry in entries if not _is_stamped(entry) or entry["_ts"] >= oldest]


def _add_entry(entries: list[Json], entry: Json, *, reducer: str) -> list[Json]:
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
    found = body.get(name) if is_object(body) else None
    return found if isinstance(found, str) else None


def _trim(entries: list[Json], max_size: int | None) -> list[Json]:
    return entries if max_size is None or max_size < 1 else entries[-max_size:]


def _sum(total: Number, entry: Json) -> Number:
    if not _is_number(entry):
        return total
    try:
        return total + entry
    except OverflowError:
        # A whole number that a double cannot represent was combined with a fraction.
        return total


def _size(value: Json) -> int:
    return len(cast("Collection[Json]", value)) if isinstance(value, str | list | dict) else 1


def _names_type(entry: str, type_id: str) -> bool:
    return entry == "*" or (entry.endswith(".*") and type_id.startswith(entry[:-1]))


def _counter_fault(value: Json) -> str | None:
    if not _is_number(value):
        return "must be a number"
    return None if math.isfinite(value) else "must be a finite number"


def _merge_fault(value: Json) -> str | None:
    return None if is_object(value) else "must be an object"


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
# Optional members of a message.
_OPTIONAL_TEXTS: Final[_Fields] = dict.fromkeys(("to", "groupId", "role"), (_is_text, _A_TEXT))
_LONGEST_SHOWN: Final = 60


def _fields_fault(value: Json, fields: _Fields) -> str | None:
    """Return every member that is missing or wrong."""
    if not is_object(value):
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


def _message_fault(value: Json) -> str | None:
    if not is_object(value):
        return "must be an object"
    given = {name: rule for name, rule in _OPTIONAL_TEXTS.items() if name in value}
    # The content of a message may be null, but it may not be absent.
    content: _Fields = {} if "content" in value else {"content": (_is_present, "any value")}
    return _fields_fault(value, {**_MESSAGE, **content, **given})


def _votes_fault(value: Json) -> str | None:
    wrong = _fields_fault(value, _VOTE)
    if wrong is None and not isinstance(value.get("reason", ""), str):
        return "takes a reason that is a text"
    return wrong


_CHECKS: Final[Mapping[str, Callable[[Json], str | None]]] = {
    "counter": _counter_fault,
    "merge": _merge_fault,
    "votes": _votes_fault,
    "feedback": lambda value: _fields_fault(value, _FEEDBACK),
    "message": _message_fault,
}


def context_channel(config: JsonObject) -> str | None:
    """Return the channel of a node's shared context, or None if the node has its own context."""
    sharing: str = read_member(config, "agentSharing", str, ISOLATED)
    return CONTEXT_CHANNEL + sharing.removeprefix(SHARED) if sharing.startswith(SHARED) else None


def group_of(channel: str) -> str:
    """Return the id of the group whose context a channel holds; empty for the run's context."""
    return channel.removeprefix(CONTEXT_CHANNEL).removeprefix(":")


def is_context_channel(channel: str) -> bool:
    """Return whether a channel with this name holds a shared context."""
    return channel == CONTEXT_CHANNEL or channel.startswith(f"{CONTEXT_CHANNEL}:")


def messages_in(channels: JsonObject, channel: str | None) -> list[Json]:
    """Return the messages of a context."""
    return list_of(None if channel is None else channels.get(channel))
