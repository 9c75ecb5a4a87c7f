"""JSON of somebody else's, looked at without trusting its shape."""

from __future__ import annotations

from typing import cast

from wopr.protocol.documents import Json, JsonObject


def object_of(value: Json) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def list_of(value: Json) -> list[object]:
    """The value if it is a list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []
