"""Conversion of a LangGraph thread to and from JSON, to store it with the run.

LangGraph writes its checkpoints as MessagePack. They are decoded completely, so that redaction
finds secrets in them. Parts without secrets are encoded to the same bytes again.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import ormsgpack
from langgraph.checkpoint.memory import InMemorySaver

from wopr.protocol.documents import Json, JsonObject, is_list, is_object

_EXT: Final = "$ext"
_BYTES: Final = "$bytes"
_FLOAT: Final = "$float"
_MAP: Final = "$map"
_MARKERS: Final = frozenset({_EXT, _BYTES, _FLOAT, _MAP})
_MSGPACK: Final = "msgpack"
_OPTION: Final = ormsgpack.OPT_NON_STR_KEYS

TypedBytes = tuple[str, bytes]


class _Ext(NamedTuple):
    code: int
    body: bytes


def export_thread(saver: InMemorySaver, thread: str) -> Json:
    """Return all checkpoints, writes and blobs of a thread as JSON."""
    namespaces = saver.storage[thread]
    return {
        "checkpoints": [
            [namespace, name, _typed_to_json(saved[0]), _typed_to_json(saved[1]), saved[2]]
            for namespace, checkpoints in namespaces.items()
            for name, saved in checkpoints.items()
        ],
        "writes": [
            [namespace, name, task, index, channel, _typed_to_json(value), path]
            for (owner, namespace, name), writes in saver.writes.items()
            if owner == thread
            for (task, index), (_, channel, value, path) in writes.items()
        ],
        "blobs": [
            [namespace, channel, version, _typed_to_json(value)]
            for (owner, namespace, channel, version), value in saver.blobs.items()
            if owner == thread
        ],
    }


def restore_thread(state: JsonObject, thread: str) -> InMemorySaver:
    """Return a saver with an exported thread."""
    saver = InMemorySaver()
    for namespace, name, checkpoint, metadata, parent in state["checkpoints"]:
        saved = (_typed_from_json(checkpoint), _typed_from_json(metadata), parent)
        saver.storage[thread][namespace][name] = saved
    for namespace, name, task, index, channel, value, path in state["writes"]:
        written = (task, channel, _typed_from_json(value), path)
        saver.writes[(thread, namespace, name)][(task, index)] = written
    for namespace, channel, version, value in state["blobs"]:
        saver.blobs[(thread, namespace, channel, version)] = _typed_from_json(value)
    return saver


def prune_thread(saver: InMemorySaver, thread: str) -> None:
    """Delete all but the newest checkpoint of each namespace.

    Called between two steps, when no subgraph is executing.
    """
    namespaces = saver.storage[thread]
    for namespace in [namespace for namespace in namespaces if ":" in namespace]:
        del namespaces[namespace]
    newest = {
        namespace: max(checkpoints) for namespace, checkpoints in namespaces.items() if checkpoints
    }
    for namespace, name in newest.items():
        namespaces[namespace] = {name: namespaces[namespace][name]}
    old = [key for key in saver.writes if key[0] == thread and newest.get(key[1]) != key[2]]
    for write in old:
        del saver.writes[write]
    kept = {
        (namespace, channel, version)
        for namespace, name in newest.items()
        for channel, version in _versions(saver, thread, namespace, name).items()
    }
    for blob in [key for key in saver.blobs if key[0] == thread and key[1:] not in kept]:
        del saver.blobs[blob]


def _versions(saver: InMemorySaver, thread: str, namespace: str, name: str) -> Mapping[str, Any]:
    checkpoint = saver.serde.loads_typed(saver.storage[thread][namespace][name][0])
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    return versions


def _typed_to_json(value: TypedBytes) -> Json:
    kind, body = value
    return [kind, _unpack(body) if kind == _MSGPACK else _to_json(body)]


def _typed_from_json(document: Json) -> TypedBytes:
    kind, tree = document
    if kind == _MSGPACK:
        return kind, ormsgpack.packb(_from_json(tree), option=_OPTION)
    body: bytes = _from_json(tree)
    return kind, body


def _unpack(body: bytes) -> Json:
    return _to_json(ormsgpack.unpackb(body, ext_hook=_Ext, option=_OPTION))


def _to_json(value: object) -> Json:
    match value:
        case _Ext(code, body):
            return {_EXT: [code, _decode_extension(body)]}
        case bytes():
            return {_BYTES: base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return {_FLOAT: str(value)}
        case dict():
            return _map_to_json(cast("dict[object, object]", value))
        case list() | tuple():
            return [_to_json(item) for item in cast("list[object]", value)]
        case _:
            return value


def _decode_extension(body: bytes) -> Json:
    """Decode an extension: MessagePack again, or bytes."""
    try:
        return _unpack(body)
    except ValueError:
        return _to_json(body)


def _map_to_json(members: dict[object, object]) -> Json:
    if all(isinstance(name, str) and name not in _MARKERS for name in members):
        return {cast("str", name): _to_json(member) for name, member in members.items()}
    return {_MAP: [[_to_json(name), _to_json(member)] for name, member in members.items()]}


def _from_json(tree: Json) -> Any:
    if is_list(tree):
        return [_from_json(item) for item in tree]
    if not is_object(tree):
        return tree
    match tree:
        case {"$ext": [code, inside]}:
            body = _from_json(inside)
            is_raw = isinstance(body, bytes) and "$bytes" in inside
            packed = body if is_raw else ormsgpack.packb(body, option=_OPTION)
            return ormsgpack.Ext(code, packed)
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$float": text}:
            return float(text)
        case {"$map": pairs}:
            return {_key(name): _from_json(member) for name, member in pairs}
        case _:
            return {name: _from_json(member) for name, member in tree.items()}


def _key(name: Json) -> Any:
    packed = _from_json(name)
    return tuple(packed) if is_list(packed) else packed
