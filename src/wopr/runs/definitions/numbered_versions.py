"""Assigned versions of workflows and agents that are written in Python.

A registered version never changes, and new runs use the newest one. A definition without a version
gets a number and a digest of its content, such as `3-0f8a41c2d9e6`, when its content has changed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from wopr.protocol.documents import JsonObject

_NUMBERED: Final = re.compile(r"(?P<count>\d+)-(?P<digest>[0-9a-f]{12})")
_DIGITS: Final = 12


def is_numbered(document: JsonObject) -> bool:
    """Return whether the version of a document was assigned here."""
    return _NUMBERED.fullmatch(str(document.get("version", ""))) is not None


def has_content(version: str, document: JsonObject) -> bool:
    """Return whether a version that was assigned here has this content."""
    match = _NUMBERED.fullmatch(version)
    return match is not None and match["digest"] == _digest(document)


def add_version(document: JsonObject, newest: str | None = None) -> JsonObject:
    """Return the document with the version after the newest one."""
    match = None if newest is None else _NUMBERED.fullmatch(newest)
    count = 0 if match is None else int(match["count"])
    return document | {"version": f"{count + 1}-{_digest(document)}"}


def _digest(document: JsonObject) -> str:
    content = {name: value for name, value in document.items() if name != "version"}
    encoded = msgspec.json.encode(content, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:_DIGITS]
