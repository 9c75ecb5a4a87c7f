"""Texts with the character U+0000, which PostgreSQL cannot store.

JSON allows the character, so a tag or a name can contain it. Every text parameter is escaped, and
every text of a result is unescaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from psycopg import BaseConnection
from psycopg.abc import Buffer
from psycopg.types.string import StrBinaryDumper, StrDumperUnknown, TextBinaryLoader, TextLoader

from wopr.store.tables.dialect import Row

# A JSON value.
JsonValue: TypeAlias = "str | int | float | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

_ESCAPE: Final = "\x1a"
_ESCAPED_NUL: Final = f"{_ESCAPE}0"
_ESCAPED_ESCAPE: Final = f"{_ESCAPE}1"


def escape(text: str) -> str:
    """Return a text as the database stores it."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ESCAPED_NUL)
    return text


def unescape(text: str) -> str:
    """Undo `escape`."""
    if _ESCAPE in text:
        return text.replace(_ESCAPED_NUL, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)
    return text


def escape_json(value: JsonValue) -> JsonValue:
    """Escape the texts of a JSON value, but not the names of members."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {name: escape_json(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [escape_json(each) for each in value]
    return value


class _Dumper(StrDumperUnknown):
    """Escapes parameters."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escape(obj))


class _BinaryDumper(StrBinaryDumper):
    """Escapes the elements of array parameters."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escape(obj))


class _Loader(TextLoader):
    """Unescapes texts of results."""

    def load(self, data: Buffer) -> str:
        return unescape(str(super().load(data)))


class _BinaryLoader(TextBinaryLoader):
    """Unescapes texts of results."""

    def load(self, data: Buffer) -> str:
        return unescape(str(super().load(data)))


def escape_texts(connection: BaseConnection[Row]) -> None:
    """Escape the texts that this connection writes, and unescape those that it reads."""
    for dumper in (_BinaryDumper, _Dumper):
        connection.adapters.register_dumper(str, dumper)
    for loader in (_Loader, _BinaryLoader):
        connection.adapters.register_loader("text", loader)
