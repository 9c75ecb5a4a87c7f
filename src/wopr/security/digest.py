"""A digest of JSON that key order and white space do not change."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from wopr.protocol.documents import Json

_SORTED: Final = msgspec.json.Encoder(order="sorted")


def json_digest(value: Json) -> bytes:
    """Return the SHA-256 of the value with its keys sorted and no white space."""
    return hashlib.sha256(_SORTED.encode(value)).digest()
