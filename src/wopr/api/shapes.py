"""What values look like, read from Python types as JSON Schemas: their members and their kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from wopr.nodes.typed import inlined, schema_of
from wopr.protocol.documents import JsonObject
from wopr.protocol.workflow import VariableType

ANYTHING: Final[JsonObject] = {}
_KINDS: Final = frozenset({"string", "number", "boolean", "object", "array", "null"})
_KIND_OF: Final[dict[type[Any], str]] = {
    bool: "boolean",
    str: "string",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def shape_of(kind: Any) -> JsonObject:
    """The JSON Schema of a Python type, complete in itself, so that it can stand inside another.

    Raises `TypeError` for a type that JSON has no word for, and for one that contains itself.
    """
    if kind is Any or kind is dict:
        return ANYTHING
    return inlined(schema_of(kind))


def members(shape: JsonObject) -> dict[str, JsonObject] | None:
    """The members of an object by name; None where any name will do."""
    properties = shape.get("properties")
    return cast("dict[str, JsonObject]", properties) if isinstance(properties, dict) else None


def required(shape: JsonObject) -> list[str]:
    """The members that an object must have."""
    return list(shape.get("required", ()))


def kinds(shape: JsonObject) -> frozenset[str]:
    """The JSON types that a value of this shape can have."""
    return frozenset(_kinds(shape)) or _KINDS


def fits(value: JsonObject, wanted: JsonObject) -> bool:
    """Tell whether a value of one shape can be one of the other; doubt says yes."""
    return not kinds(value).isdisjoint(kinds(wanted))


def variable_type(shape: JsonObject) -> VariableType:
    """The type that a variable of this shape is declared with."""
    found = sorted(kinds(shape) - {"null"})
    match found:
        case ["string" | "number" | "boolean" | "array" as only]:
            return only
        case _:
            return "object"


def told(shape: JsonObject) -> str:
    """The kinds of a shape in words."""
    found = kinds(shape)
    return "anything" if found == _KINDS else " or ".join(sorted(found))


def _kinds(shape: JsonObject) -> Iterator[str]:
    for part in cast("list[JsonObject]", [*shape.get("anyOf", ()), *shape.get("oneOf", ())]):
        yield from _kinds(part)
    values: list[object] = [*shape.get("enum", ()), *([shape["const"]] if "const" in shape else [])]
    for value in values:
        yield _KIND_OF.get(type(value), "object")
    named = shape.get("type", ())
    for name in [named] if isinstance(named, str) else cast("list[str]", named):
        yield "number" if name == "integer" else name
