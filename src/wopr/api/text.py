"""Text of a host made harmless for a terminal: control characters are taken out."""

from __future__ import annotations

import re
from typing import Final

from wopr.protocol.documents import Json, encode

# C0, DEL and C1 move the cursor or start escape sequences; the rest reorder the text around
# them, break lines, or cannot be encoded.
_INVISIBLE: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
)
UNSAFE: Final = re.compile(f"[{_INVISIBLE}]")
_BREAKS: Final = re.compile(r"[\t\n\r]+")
_VALUE_LENGTH: Final = 72


def plain_block(text: str) -> str:
    """Take control characters out of a text; line ends and tabs stay."""
    return UNSAFE.sub("", text)


def plain(text: object) -> str:
    """Make one harmless line of a text."""
    return plain_block(_BREAKS.sub(" ", str(text)))


def is_plain(text: str) -> bool:
    """Tell whether a text holds nothing that `plain_block` would take out."""
    return UNSAFE.search(text) is None


def short(value: Json, length: int = _VALUE_LENGTH) -> str:
    """A JSON value as one line of bounded length."""
    text = plain(encode(value).decode())
    return text if len(text) <= length else text[: length - 1] + "…"
