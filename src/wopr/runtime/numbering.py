"""Versions of what is written in Python: a new one whenever the content has changed.

A registered version never changes and the newest one is used. A workflow or an agent without a
version of its own is numbered by its content: `3-0f8a41c2d9e6` is the third, and says what is in it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from wopr.protocol.documents import JsonObject

_OWN: Final = re.compile(r"(?P<count>\d+)-(?P<digest>[0-9a-f]{12})")
_DIGITS: Final = 12


def is_numbered(document: JsonObject) -> bool:
    """Tell whether a document's version was given here."""
    return _OWN.fullmatch(str(document.get("version", ""))) is not None


def same_content(version: str, document: JsonObject) -> bool:
    """Tell whether a version that was given here stands for this content."""
    own = _OWN.fullmatch(version)
    return own is not None and own["digest"] == _digest(document)


def versioned(document: JsonObject, newest: str | None = None) -> JsonObject:
    """The document as the version after the newest one."""
    own = None if newest is None else _OWN.fullmatch(newest)
    count = 0 if own is None else int(own["count"])
    return document | {"version": f"{count + 1}-{_digest(document)}"}


def _digest(document: JsonObject) -> str:
    content = {name: value for name, value in document.items() if name != "version"}
    encoded = msgspec.json.encode(content, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:_DIGITS]
