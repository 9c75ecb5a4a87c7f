"""Format JSON Schemas as tables and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "matching `{}`"),
)


def cell(text: object) -> str:
    """Format text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(headings: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    """Return a table; nothing if it has no rows."""
    if not rows:
        return []
    lines = [headings, tuple("---" for _ in headings), *rows]
    return [*("| " + " | ".join(cell(each) for each in line) + " |" for line in lines), ""]


def fields(schema: Schema, shapes: Mapping[str, Schema]) -> list[tuple[object, ...]]:
    """Return name, type and whether it is required for each member of an object's schema."""
    whole = resolved(schema, shapes)
    required = whole.get("required", ())
    return [
        (f"`{name}`", type_text(member), "yes" if name in required else default_text(member))
        for name, member in whole.get("properties", {}).items()
    ]


def resolved(schema: Schema, shapes: Mapping[str, Schema]) -> Schema:
    """Return the schema of a reference."""
    return shapes[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def default_text(schema: Schema) -> str:
    """Return the default of a member as text."""
    default = schema.get("default")
    return "no" if default in (None, [], {}, "") else f"no, `{_literal(default)}`"


def type_text(schema: Schema) -> str:
    """Return the type of a schema as text."""
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(type_text(each) for each in schema["anyOf"])
    name = schema.get("type", "any value")
    if name == "array":
        name = f"array of {type_text(schema.get('items', {}))}"
    elif name == "object" and schema.get("additionalProperties"):
        name = f"object of {type_text(schema['additionalProperties'])}"
    return ", ".join((name, *_bounds(schema)))


def _bounds(schema: Schema) -> Iterator[str]:
    for key, words in _BOUNDS:
        if key in schema and (key, schema[key]) != ("minLength", 1):
            yield words.format(schema[key])


def _literal(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
