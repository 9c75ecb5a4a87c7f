"""Between Python types and JSON: dataclasses, structs, typed dictionaries, and pydantic's models.

Pydantic is not needed for that: its models are known by the methods that they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import msgspec

from wopr.engine.expression_tokens import is_list, is_object
from wopr.protocol.documents import Json, JsonObject

T = TypeVar("T")


class _Model(Protocol):
    """What a model of pydantic has, as far as it is used here."""

    def model_dump(self, *, mode: str, by_alias: bool) -> Json: ...

    @classmethod
    def model_json_schema(cls) -> JsonObject: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


class _Invalid(Protocol):
    """What pydantic raises: every fault with its place."""

    def errors(self) -> list[JsonObject]: ...


def schema_of(kind: Any) -> JsonObject:
    """The JSON Schema of a Python type. Raises `TypeError` for one that JSON has no word for."""
    return msgspec.json.schema(kind, schema_hook=_schema)


def from_json(value: Json, kind: type[T]) -> T:
    """JSON as a value of a Python type; raises `msgspec.ValidationError` naming the path."""
    return msgspec.convert(value, kind, dec_hook=_decoded)


def to_json(value: object) -> Json:
    """A Python value as JSON. Raises `TypeError` for one that JSON has no word for."""
    return msgspec.to_builtins(value, enc_hook=_encoded)


def inlined(schema: JsonObject) -> JsonObject:
    """The schema with its definitions in place of the references to them.

    Raises `TypeError` for a type that contains itself.
    """
    own = dict(schema)
    definitions = cast("dict[str, JsonObject]", own.pop("$defs", {}))
    return cast("JsonObject", _inlined(own, definitions, ()))


def _inlined(part: Json, definitions: Mapping[str, JsonObject], within: tuple[str, ...]) -> Json:
    if is_list(part):
        return [_inlined(each, definitions, within) for each in part]
    if not is_object(part):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in within:
            raise TypeError(f"{name} contains itself; give a type that ends")
        return _inlined(definitions[name], definitions, (*within, name))
    return {key: _inlined(value, definitions, within) for key, value in part.items()}


def _is_model(kind: object) -> TypeGuard[type[_Model]]:
    parts = ("model_dump", "model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(hasattr(kind, part) for part in parts)


def _schema(kind: type[Any]) -> JsonObject:
    if _is_model(kind):
        return inlined(kind.model_json_schema())
    raise TypeError(
        f"{kind.__name__} is no type of JSON: give a dataclass, a struct, a TypedDict or a pydantic model"
    )


def _decoded(kind: type[Any], value: Json) -> object:
    if not _is_model(kind):
        raise TypeError(f"{kind.__name__} is no type of JSON")
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as fault:
        raise ValueError(_told(fault)) from fault


def _told(fault: ValueError) -> str:
    """Pydantic's faults in one line, each with its field."""
    if not hasattr(fault, "errors"):
        return str(fault)
    found = cast("_Invalid", fault).errors()
    return "; ".join(
        f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
        if each["loc"]
        else each["msg"]
        for each in found
    )


def _encoded(value: object) -> Json:
    kind = type(value)
    if _is_model(kind):
        return cast("_Model", value).model_dump(mode="json", by_alias=True)
    raise TypeError(f"a value of type {kind.__name__} cannot be written as JSON")
