"""Digests of JSON, independent of key order and white space."""

from __future__ import annotations

import hashlib
from typing import Final, cast

import msgspec
import rfc8785

from wopr.protocol.documents import Json, is_object

_SORTED: Final = msgspec.json.Encoder(order="sorted")
# Integers up to this value are exact as doubles. Larger JSON numbers are rounded.
_SAFE_INTEGER: Final = 2**53 - 1


def json_digest(value: Json) -> bytes:
    """Return the SHA-256 of the value with its keys sorted and no white space."""
    return hashlib.sha256(_SORTED.encode(value)).digest()


def canonical_digest(value: Json) -> str:
    """Return the SHA-256 of the canonical form (RFC 8785), in lowercase hexadecimal.

    Raises `ValueError` for a value that is not JSON.
    """
    try:
        return hashlib.sha256(rfc8785.dumps(_as_doubles(value))).hexdigest()
    except (rfc8785.CanonicalizationError, OverflowError, RecursionError) as fault:
        raise ValueError(str(fault)) from fault


def _as_doubles(value: Json) -> Json:
    """Return the value with every number as a double."""
    if is_object(value):
        return {name: _as_doubles(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_as_doubles(item) for item in cast("list[Json]", value)]
    if isinstance(value, int) and abs(value) > _SAFE_INTEGER:
        return float(value)
    return value
