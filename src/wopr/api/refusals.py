"""The faults that a check of the host names, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError


def faults_of(refusal: WoprError, names: Sequence[str] = ()) -> list[str]:
    """The faults of a refusal, with `nodes.2` told as the node's own name."""
    errors = cast("list[JsonObject]", refusal.details.get("errors", ()))
    faults = [_told(str(each["path"]), str(each["message"]), names) for each in errors]
    return faults or [refusal.message]


def _told(path: str, message: str, names: Sequence[str]) -> str:
    first, _, rest = path.partition(".")
    index, _, member = rest.partition(".")
    if first == "nodes" and index.isdecimal() and int(index) < len(names):
        return f"node {names[int(index)]}: " + (f"{member}: " if member else "") + message
    return f"{path}: {message}" if path else message
