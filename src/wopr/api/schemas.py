"""JSON Schemas of Python types: members, JSON types, and variables declared from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.json_schema.conversion import inline_references, schema_of
from wopr.protocol.workflow import VariableType, WorkflowVariable

ANY_SCHEMA: Final[JsonObject] = {}
_JSON_TYPES: Final = frozenset({"string", "number", "boolean", "object", "array", "null"})
_JSON_TYPE_OF: Final[dict[type[Any], str]] = {
    bool: "boolean",
    str: "string",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def schema_for(kind: Any) -> JsonObject:
    """Return the JSON Schema of a Python type without references, so that it can be nested.

    Raises `TypeError` for a type that JSON cannot express, and for one that contains itself.
    """
    if kind is Any or kind is dict:
        return ANY_SCHEMA
    return inline_references(schema_of(kind))


def members(schema: JsonObject) -> dict[str, JsonObject] | None:
    """Return the members of an object by name; None if any name is allowed."""
    properties = schema.get("properties")
    return cast("dict[str, JsonObject]", properties) if isinstance(properties, dict) else None


def required(schema: JsonObject) -> list[str]:
    """Return the names of the members that an object must have."""
    return list(schema.get("required", ()))


def json_types(schema: JsonObject) -> frozenset[str]:
    """Return the JSON types that a value can have."""
    return frozenset(_declared_types(schema)) or _JSON_TYPES


def fits(value: JsonObject, wanted: JsonObject) -> bool:
    """Return whether a value of one schema may be valid for the other schema; True if unknown."""
    return not json_types(value).isdisjoint(json_types(wanted))


def variable_type(schema: JsonObject) -> VariableType:
    """Return the type that a variable is declared with."""
    found = sorted(json_types(schema) - {"null"})
    match found:
        case ["string" | "number" | "boolean" | "array" as only]:
            return only
        case _:
            return "object"


def json_types_text(schema: JsonObject) -> str:
    """Describe the JSON types that a value can have."""
    found = json_types(schema)
    return "anything" if found == _JSON_TYPES else " or ".join(sorted(found))


def variables_of(schema: JsonObject) -> dict[str, WorkflowVariable]:
    """Declare a variable for every input that has one JSON type.

    An input of several types is not declared: a run accepts any value for it.
    """
    needed = required(schema)
    return {
        name: variable_of(
            name, part, is_required=name in needed, default=part.get("default", UNSET)
        )
        for name, part in (members(schema) or {}).items()
        if len(json_types(part) - {"null"}) == 1
    }


def variable_of(
    name: str, schema: JsonObject, *, is_required: bool, default: Json
) -> WorkflowVariable:
    """Declare one variable."""
    return WorkflowVariable(
        name=name,
        type=variable_type(schema),
        required=is_required,
        default_value=UNSET if default is None else default,
    )


def _declared_types(schema: JsonObject) -> Iterator[str]:
    for part in cast("list[JsonObject]", [*schema.get("anyOf", ()), *schema.get("oneOf", ())]):
        yield from _declared_types(part)
    const = [schema["const"]] if "const" in schema else []
    values: list[object] = [*schema.get("enum", ()), *const]
    for value in values:
        yield _JSON_TYPE_OF.get(type(value), "object")
    named = schema.get("type", ())
    for name in [named] if isinstance(named, str) else cast("list[str]", named):
        yield "number" if name == "integer" else name
