"""The base of every wire document, shared value types, and guards for JSON values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, TypeGuard, cast

import msgspec

# A JSON value without a narrower type, such as inputs, outputs and configs.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Millis = Annotated[int, msgspec.Meta(ge=0)]

UNSET = msgspec.UNSET
Unset = msgspec.UnsetType


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An open wire document: immutable, with camelCase names on the wire.

    A member without a value is absent and not null.
    """


class Closed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A closed wire document: an unknown key makes it invalid."""


def is_list(value: Json) -> TypeGuard[list[Json]]:
    """Return whether a JSON value is an array."""
    return isinstance(value, list)


def is_object(value: Json) -> TypeGuard[JsonObject]:
    """Return whether a JSON value is an object."""
    return isinstance(value, dict)


def json_equal(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0, and true does not equal 1."""
    if not isinstance(left, list | dict):
        return _leaves_equal(left, right)
    pairs: list[tuple[Json, Json]] = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if is_list(a) and is_list(b) and len(a) == len(b):
            pairs.extend(zip(a, b, strict=True))
        elif is_object(a) and is_object(b) and a.keys() == b.keys():
            pairs.extend((a[key], b[key]) for key in a)
        elif not _leaves_equal(a, b):
            return False
    return True


def _leaves_equal(left: Json, right: Json) -> bool:
    if isinstance(left, Unset | list | dict):
        return False
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def object_of(value: Json) -> JsonObject:
    """Return the value if it is a JSON object, else an empty object."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_of(value: Json) -> list[object]:
    """Return the value if it is a JSON array, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def objects_in(document: JsonObject, name: str) -> list[JsonObject]:
    """Return an array of an unchecked document. An item that is not an object becomes `{}`."""
    return [object_of(item) for item in list_of(document.get(name))]


ENCODER = msgspec.json.Encoder()


def encode(document: object) -> bytes:
    """Encode a document as the bytes that are sent and stored."""
    return ENCODER.encode(document)


_EPOCH = datetime(1970, 1, 1)
# Events of the same millisecond have equal timestamps.
_CACHE_SIZE = 256


@lru_cache(maxsize=_CACHE_SIZE)
def to_iso(instant: int) -> str:
    """Return a time in milliseconds as ISO 8601 text."""
    moment = _EPOCH + timedelta(milliseconds=instant)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


@lru_cache(maxsize=_CACHE_SIZE)
def to_millis(iso: str) -> int:
    """Return an ISO 8601 timestamp in milliseconds. A time without a zone is UTC."""
    moment = datetime.fromisoformat(iso)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
