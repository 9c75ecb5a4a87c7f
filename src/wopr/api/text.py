"""Removal of control characters from a host's text, so that a terminal can show it."""

from __future__ import annotations

import re
from typing import Final

from wopr.protocol.documents import Json, encode

# C0, DEL and C1 move the cursor or start escape sequences. The other characters reorder text, break
# lines, or cannot be encoded.
_INVISIBLE: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
)
UNSAFE: Final = re.compile(f"[{_INVISIBLE}]")
_BREAKS: Final = re.compile(r"[\t\n\r]+")
_VALUE_LENGTH: Final = 72


def plain_block(text: str) -> str:
    """Remove control characters from a text; keep line ends and tabs."""
    return UNSAFE.sub("", text)


def plain(text: object) -> str:
    """Convert a value to one line of text without control characters."""
    return plain_block(_BREAKS.sub(" ", str(text)))


def is_plain(text: str) -> bool:
    """Return whether a text has no control characters."""
    return UNSAFE.search(text) is None


def short(value: Json, length: int = _VALUE_LENGTH) -> str:
    """Encode a JSON value as one line of limited length."""
    text = plain(encode(value).decode())
    return text if len(text) <= length else text[: length - 1] + "…"
