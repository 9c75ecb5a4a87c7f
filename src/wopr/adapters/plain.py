"""Values of other frameworks as JSON, and the message for one that is not installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from wopr.protocol.documents import Json


def plain(value: object) -> Json:
    """The value as JSON: what has no such form is told as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {str(name): plain(member) for name, member in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in cast("Iterable[object]", value)]
    dump: Any = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        # Pydantic's own way, which most of these frameworks use for their values.
        return plain(dump(mode="json"))
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    return _members(value)


def _members(value: object) -> Json:
    """The members of a dataclass; anything else as text."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return str(value)
    fields = dataclasses.fields(value)
    return {field.name: plain(getattr(value, field.name)) for field in fields}


def not_installed(what: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error of an adapter whose framework is not there."""
    message = f'the adapter for {what} needs {missing.name}: pip install "wopr[{extra}]"'
    return ModuleNotFoundError(message, name=missing.name)
