"""The base of every wire document, and the value types that many of them share."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeGuard

import msgspec

# JSON that belongs to somebody else: inputs, outputs, configs. The decoding edge is the only
# place that may hold it without a narrower type.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Millis = Annotated[int, msgspec.Meta(ge=0)]

UNSET = msgspec.UNSET
Unset = msgspec.UnsetType


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An open wire document: immutable, camelCase outside, absent rather than null."""


class Closed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A closed wire document: a key it does not know makes it invalid."""


def is_list(value: Json) -> TypeGuard[list[Json]]:
    """Tell whether a JSON value is a list."""
    return isinstance(value, list)


def is_object(value: Json) -> TypeGuard[JsonObject]:
    """Tell whether a JSON value is an object."""
    return isinstance(value, dict)


ENCODER = msgspec.json.Encoder()


def encode(document: object) -> bytes:
    """Encode a document as the bytes that go on the wire and on the disk."""
    return ENCODER.encode(document)
