"""JSON Schemas that expand to a much larger size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from wopr.protocol.documents import JsonObject


def expanding_schema(
    doublings: int = 30, *, keyword: str = "allOf", leaf: JsonObject | None = None
) -> JsonObject:
    """Return a schema in which each definition refers twice to the next."""
    names = [f"d{index}" for index in range(doublings + 1)]
    definitions: JsonObject = {names[-1]: leaf or {}}
    for name, following in pairwise(names):
        definitions[name] = {keyword: [{"$ref": f"#/$defs/{following}"}] * 2}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def disguised_expanding_schemas(doublings: int = 30) -> dict[str, JsonObject]:
    """Return expanding schemas with references that are easily misread, by form."""
    based: JsonObject = {"$id": "https://example.com/inner"} | expanding_schema(doublings)
    decoys: JsonObject = {name: {} for name in based["$defs"]}
    anchored = _expanding_schema_by(lambda n: f"#a{n}", doublings)
    for n, part in enumerate(anchored["$defs"]["l"]["allOf"]):
        part["$anchor"] = f"a{n}"
    anchored["default"] = [{"$anchor": f"a{n}"} for n in range(doublings + 2)]
    return {
        "a sign": _expanding_schema_by(lambda n: f"#/$defs/l/allOf/+{n}", doublings),
        "many digits": _expanding_schema_by(lambda n: f"#/$defs/l/allOf/{n:010}", doublings),
        "percent encoding": _expanding_schema_by(lambda n: f"#/%24defs/l/allOf/%2B{n}", doublings),
        "an anchor": anchored,
        "a base": {"$defs": decoys | {"r": based}, "$ref": "#/$defs/r/$defs/d0"},
        "its own address": _expanding_schema_by(
            lambda n: f"https://example.com/r#/$defs/l/allOf/{n}", doublings
        )
        | {"$id": "https://example.com/r"},
    }


def _expanding_schema_by(reference: Callable[[int], str], doublings: int) -> JsonObject:
    """Return an expanding schema with definitions as list items; the first item is not one."""
    items: list[JsonObject] = [
        {"allOf": [{"$ref": reference(n + 1)}] * 2} for n in range(1, doublings + 1)
    ]
    return {"$defs": {"l": {"allOf": [{}, *items, {}]}}, "$ref": reference(1)}


def tree() -> JsonObject:
    """Return a recursive schema, as honest clients have them."""
    return {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer"},
                    "parts": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                },
            }
        },
    }
