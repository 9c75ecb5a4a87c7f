"""Conversion between JSON and dataclasses, structs, typed dictionaries and pydantic models.

Pydantic need not be installed: its models are recognized by their methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import msgspec

from wopr.protocol.documents import Json, JsonObject, is_list, is_object

T = TypeVar("T")


class _Model(Protocol):
    """The methods of a pydantic model that this module uses."""

    def model_dump(self, *, mode: str, by_alias: bool) -> Json: ...

    @classmethod
    def model_json_schema(cls) -> JsonObject: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


class _PydanticError(Protocol):
    """A pydantic validation error with every fault and its path."""

    def errors(self) -> list[JsonObject]: ...


def schema_of(kind: Any) -> JsonObject:
    """Return the JSON Schema of a Python type. Raises `TypeError` for an unsupported type."""
    return msgspec.json.schema(kind, schema_hook=_model_schema)


def from_json(value: Json, kind: type[T]) -> T:
    """Return JSON as a value of a Python type. Raises `msgspec.ValidationError` with the path."""
    return msgspec.convert(value, kind, dec_hook=_decode_model)


def to_json(value: object) -> Json:
    """Return a Python value as JSON. Raises `TypeError` for an unsupported type."""
    return msgspec.to_builtins(value, enc_hook=_encode_model)


def inline_references(schema: JsonObject) -> JsonObject:
    """Return the schema with every reference replaced by its definition.

    Raises `TypeError` for a type that contains itself.
    """
    root = dict(schema)
    definitions = cast("dict[str, JsonObject]", root.pop("$defs", {}))
    return cast("JsonObject", _inline(root, definitions, ()))


def _inline(part: Json, definitions: Mapping[str, JsonObject], within: tuple[str, ...]) -> Json:
    if is_list(part):
        return [_inline(each, definitions, within) for each in part]
    if not is_object(part):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in within:
            raise TypeError(f"{name} contains itself: use a type that is not recursive")
        return _inline(definitions[name], definitions, (*within, name))
    return {key: _inline(value, definitions, within) for key, value in part.items()}


def _is_model(kind: object) -> TypeGuard[type[_Model]]:
    parts = ("model_dump", "model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(hasattr(kind, part) for part in parts)


def _model_schema(kind: type[Any]) -> JsonObject:
    if _is_model(kind):
        return inline_references(kind.model_json_schema())
    raise TypeError(
        f"{kind.__name__} is not a JSON type: use a dataclass, a struct, a TypedDict or a pydantic "
        "model"
    )


def _decode_model(kind: type[Any], value: Json) -> object:
    if not _is_model(kind):
        raise TypeError(f"{kind.__name__} is not a JSON type")
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as fault:
        raise ValueError(_message(fault)) from fault


def _message(fault: ValueError) -> str:
    """Return the faults of a pydantic error in one line, each with its field."""
    if not hasattr(fault, "errors"):
        return str(fault)
    found = cast("_PydanticError", fault).errors()
    return "; ".join(
        f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
        if each["loc"]
        else each["msg"]
        for each in found
    )


def _encode_model(value: object) -> Json:
    kind = type(value)
    if _is_model(kind):
        return cast("_Model", value).model_dump(mode="json", by_alias=True)
    raise TypeError(f"a value of type {kind.__name__} cannot be written as JSON")
