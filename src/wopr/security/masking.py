"""The masking modes of sensitive values."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final, assert_never

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.workflow import MaskingMode
from wopr.security.digest import json_digest
from wopr.security.shapes import MASK


class Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
"""The result of `mask` for a member that must not be written."""


def mask(value: Json, mode: MaskingMode) -> Json | Omit:
    """Return the replacement of a sensitive value, or `OMIT`.

    Secrets are redacted in addition in every mode, also in `passthrough`.
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
    """Return the object with the named members masked; the same object if it has none."""
    if mode == "passthrough" or not any(name in members for name in names):
        return members
    written = {
        name: mask(value, mode) if name in names else value for name, value in members.items()
    }
    return {name: value for name, value in written.items() if value is not OMIT}
