"""Texts that PostgreSQL cannot hold as they are: those with the character U+0000.

JSON has it, so a tag or a name can too. It is written as two other characters on the way in, and
read back on the way out; whatever a text is compared with went the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from psycopg import BaseConnection
from psycopg.abc import Buffer
from psycopg.types.string import StrBinaryDumper, StrDumperUnknown, TextBinaryLoader, TextLoader

from wopr.store.sql.dialect import Row

# What a call of `append` is written down as.
Tree: TypeAlias = "str | int | float | Sequence[Tree] | Mapping[str, Tree] | None"

_MARK: Final = "\x1a"
_NUL: Final = f"{_MARK}0"
_MARK_ITSELF: Final = f"{_MARK}1"


def escaped(text: str) -> str:
    """A text as the database holds it."""
    if "\0" in text or _MARK in text:
        return text.replace(_MARK, _MARK_ITSELF).replace("\0", _NUL)
    return text


def unescaped(text: str) -> str:
    """The opposite of `escaped`."""
    if _MARK in text:
        return text.replace(_NUL, "\0").replace(_MARK_ITSELF, _MARK)
    return text


def escaped_json(value: Tree) -> Tree:
    """A document whose texts are escaped; the names of its members are the adapter's own."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {name: escaped_json(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [escaped_json(each) for each in value]
    return value


class _Dumper(StrDumperUnknown):
    """Texts on their way in."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escaped(obj))


class _BinaryDumper(StrBinaryDumper):
    """Texts on their way in, as part of a list."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escaped(obj))


class _Loader(TextLoader):
    """Texts on their way out."""

    def load(self, data: Buffer) -> str:
        return unescaped(str(super().load(data)))


class _BinaryLoader(TextBinaryLoader):
    """Texts on their way out."""

    def load(self, data: Buffer) -> str:
        return unescaped(str(super().load(data)))


def hold_any_text(connection: BaseConnection[Row]) -> None:
    """Let every text pass through this connection."""
    for dumper in (_BinaryDumper, _Dumper):
        connection.adapters.register_dumper(str, dumper)
    for loader in (_Loader, _BinaryLoader):
        connection.adapters.register_loader("text", loader)
