"""The masking modes: what is written in place of a value that was marked sensitive."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final, Literal, TypeAlias, assert_never

from wopr.protocol.documents import Json, JsonObject
from wopr.security.digest import json_digest
from wopr.security.shapes import MASK

MaskingMode: TypeAlias = Literal["mask", "omit", "hash", "passthrough"]


class Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
"""What `mask` returns for a member that must not be written at all."""


def mask(value: Json, mode: MaskingMode) -> Json | Omit:
    """Return what to write for a sensitive value, or `OMIT` for nothing.

    Redaction of secrets applies on top in every mode, `passthrough` included.
    """
    match mode:
        case "mask":
            return MASK
        case "omit":
            return OMIT
        case "hash":
            return f"sha256:{json_digest(value).hex()}"
        case "passthrough":
            return value
        case _:
            assert_never(mode)


def mask_members(members: JsonObject, names: Collection[str], mode: MaskingMode) -> JsonObject:
    """Return the object with the named members masked; the very same one if it has none."""
    if mode == "passthrough" or not any(name in members for name in names):
        return members
    written = {
        name: mask(value, mode) if name in names else value for name, value in members.items()
    }
    return {name: value for name, value in written.items() if value is not OMIT}
