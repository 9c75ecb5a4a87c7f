"""JSON Schemas that are much larger than they look."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from wopr.protocol.documents import JsonObject


def bomb(
    doublings: int = 30, *, keyword: str = "allOf", leaf: JsonObject | None = None
) -> JsonObject:
    """A schema in which each definition refers twice to the next."""
    names = [f"d{index}" for index in range(doublings + 1)]
    definitions: JsonObject = {names[-1]: leaf or {}}
    for name, following in pairwise(names):
        definitions[name] = {keyword: [{"$ref": f"#/$defs/{following}"}] * 2}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def disguised_bombs(doublings: int = 30) -> dict[str, JsonObject]:
    """Bombs whose references have forms that are easily misread, by the name of the form."""
    based: JsonObject = {"$id": "https://example.com/inner"} | bomb(doublings)
    decoys: JsonObject = {name: {} for name in based["$defs"]}
    anchored = _bomb_by(lambda n: f"#a{n}", doublings)
    for n, part in enumerate(anchored["$defs"]["l"]["allOf"]):
        part["$anchor"] = f"a{n}"
    anchored["default"] = [{"$anchor": f"a{n}"} for n in range(doublings + 2)]
    return {
        "a sign": _bomb_by(lambda n: f"#/$defs/l/allOf/+{n}", doublings),
        "many digits": _bomb_by(lambda n: f"#/$defs/l/allOf/{n:010}", doublings),
        "percent encoding": _bomb_by(lambda n: f"#/%24defs/l/allOf/%2B{n}", doublings),
        "an anchor": anchored,
        "a base": {"$defs": decoys | {"r": based}, "$ref": "#/$defs/r/$defs/d0"},
        "its own address": _bomb_by(
            lambda n: f"https://example.com/r#/$defs/l/allOf/{n}", doublings
        )
        | {"$id": "https://example.com/r"},
    }


def _bomb_by(reference: Callable[[int], str], doublings: int) -> JsonObject:
    """A bomb whose definitions are the items of a list; the first item is not one of them."""
    items: list[JsonObject] = [
        {"allOf": [{"$ref": reference(n + 1)}] * 2} for n in range(1, doublings + 1)
    ]
    return {"$defs": {"l": {"allOf": [{}, *items, {}]}}, "$ref": reference(1)}


def tree() -> JsonObject:
    """A recursive schema, as honest clients have them."""
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
