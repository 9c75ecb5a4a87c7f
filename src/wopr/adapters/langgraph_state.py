"""A LangGraph thread as readable JSON, so that it can stand on record and be taken up again.

LangGraph writes its checkpoints as MessagePack. Here they are taken apart to the last string, so
that redaction sees into them, and put together again byte for byte where nothing was redacted.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import ormsgpack
from langgraph.checkpoint.memory import InMemorySaver

from wopr.engine.expression_tokens import is_list, is_object
from wopr.protocol.documents import Json, JsonObject

_EXT: Final = "$ext"
_BYTES: Final = "$bytes"
_FLOAT: Final = "$float"
_MAP: Final = "$map"
_MARKS: Final = frozenset({_EXT, _BYTES, _FLOAT, _MAP})
_MSGPACK: Final = "msgpack"
_OPTION: Final = ormsgpack.OPT_NON_STR_KEYS

Typed = tuple[str, bytes]


class _Ext(NamedTuple):
    code: int
    body: bytes


def export(saver: InMemorySaver, thread: str) -> Json:
    """Everything that a saver has of a thread."""
    spaces = saver.storage[thread]
    return {
        "checkpoints": [
            [space, name, _told(saved[0]), _told(saved[1]), saved[2]]
            for space, checkpoints in spaces.items()
            for name, saved in checkpoints.items()
        ],
        "writes": [
            [space, name, task, place, channel, _told(value), path]
            for (owner, space, name), writes in saver.writes.items()
            if owner == thread
            for (task, place), (_, channel, value, path) in writes.items()
        ],
        "blobs": [
            [space, channel, version, _told(value)]
            for (owner, space, channel, version), value in saver.blobs.items()
            if owner == thread
        ],
    }


def restored(state: JsonObject, thread: str) -> InMemorySaver:
    """A saver that has what `export` told of a thread."""
    saver = InMemorySaver()
    for space, name, checkpoint, metadata, parent in state["checkpoints"]:
        saved = (_typed(checkpoint), _typed(metadata), parent)
        saver.storage[thread][space][name] = saved
    for space, name, task, place, channel, value, path in state["writes"]:
        written = (task, channel, _typed(value), path)
        saver.writes[(thread, space, name)][(task, place)] = written
    for space, channel, version, value in state["blobs"]:
        saver.blobs[(thread, space, channel, version)] = _typed(value)
    return saver


def prune(saver: InMemorySaver, thread: str) -> None:
    """Forget what nothing can go back to: all but the newest checkpoint of each namespace.

    Called between two steps, where no subgraph is under way: those that ran are over.
    """
    spaces = saver.storage[thread]
    for space in [space for space in spaces if ":" in space]:
        del spaces[space]
    newest = {space: max(checkpoints) for space, checkpoints in spaces.items() if checkpoints}
    for space, name in newest.items():
        spaces[space] = {name: spaces[space][name]}
    old = [key for key in saver.writes if key[0] == thread and newest.get(key[1]) != key[2]]
    for write in old:
        del saver.writes[write]
    kept = {
        (space, channel, version)
        for space, name in newest.items()
        for channel, version in _versions(saver, thread, space, name).items()
    }
    for blob in [key for key in saver.blobs if key[0] == thread and key[1:] not in kept]:
        del saver.blobs[blob]


def _versions(saver: InMemorySaver, thread: str, space: str, name: str) -> Mapping[str, Any]:
    checkpoint = saver.serde.loads_typed(saver.storage[thread][space][name][0])
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    return versions


def _told(value: Typed) -> Json:
    kind, body = value
    return [kind, _tree(body) if kind == _MSGPACK else _plain(body)]


def _typed(told: Json) -> Typed:
    kind, tree = told
    if kind == _MSGPACK:
        return kind, ormsgpack.packb(_packed(tree), option=_OPTION)
    body: bytes = _packed(tree)
    return kind, body


def _tree(body: bytes) -> Json:
    return _plain(ormsgpack.unpackb(body, ext_hook=_Ext, option=_OPTION))


def _plain(value: object) -> Json:
    match value:
        case _Ext(code, body):
            return {_EXT: [code, _inside(body)]}
        case bytes():
            return {_BYTES: base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return {_FLOAT: str(value)}
        case dict():
            return _plain_map(cast("dict[object, object]", value))
        case list() | tuple():
            return [_plain(item) for item in cast("list[object]", value)]
        case _:
            return value


def _inside(body: bytes) -> Json:
    """What an extension holds: MessagePack again, or else bytes."""
    try:
        return _tree(body)
    except ValueError:
        return _plain(body)


def _plain_map(members: dict[object, object]) -> Json:
    if all(isinstance(name, str) and name not in _MARKS for name in members):
        return {cast("str", name): _plain(member) for name, member in members.items()}
    return {_MAP: [[_plain(name), _plain(member)] for name, member in members.items()]}


def _packed(tree: Json) -> Any:
    if is_list(tree):
        return [_packed(item) for item in tree]
    if not is_object(tree):
        return tree
    match tree:
        case {"$ext": [code, inside]}:
            body = _packed(inside)
            is_raw = isinstance(body, bytes) and "$bytes" in inside
            packed = body if is_raw else ormsgpack.packb(body, option=_OPTION)
            return ormsgpack.Ext(code, packed)
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$float": text}:
            return float(text)
        case {"$map": pairs}:
            return {_key(name): _packed(member) for name, member in pairs}
        case _:
            return {name: _packed(member) for name, member in tree.items()}


def _key(name: Json) -> Any:
    packed = _packed(name)
    return tuple(packed) if is_list(packed) else packed
