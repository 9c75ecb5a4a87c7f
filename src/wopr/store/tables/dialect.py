"""Differences between the SQL of SQLite and of PostgreSQL.

A statement of `store/tables/` is text with `?` for each parameter. Where the two databases need
different text, it is a `Variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

_texts = msgspec.json.Decoder(tuple[str, ...])

# A driver returns untyped values. Functions such as `rows.run_row` convert them.
Row: TypeAlias = tuple[Any, ...]
Parameter: TypeAlias = str | int | bytes | None
Value: TypeAlias = Parameter | float | Sequence[Parameter | float]

# The bounds of integer columns, such as times and sequences.
SMALLEST_INTEGER: Final = -(2**63)
LARGEST_INTEGER: Final = 2**63 - 1
# Keys of pages, a time and an id, that sort before and after every row.
BEFORE_ALL_ROWS: Final = (SMALLEST_INTEGER, "")
AFTER_ALL_ROWS: Final = (LARGEST_INTEGER, "")


@dataclass(frozen=True, slots=True)
class Variants:
    """One statement in the SQL of each database. An empty text is not executed."""

    sqlite: str
    postgres: str


Sql: TypeAlias = str | Variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The SQL of one database."""

    placeholder: str
    ordered_join: str
    is_sqlite: bool

    def indexed_by(self, index: str) -> str:
        """Return the clause that makes a statement use this index; empty on PostgreSQL."""
        return f" INDEXED BY {index}" if self.is_sqlite else ""

    def without_index(self) -> str:
        """Return the clause that makes a statement use the primary key; empty on PostgreSQL."""
        return " NOT INDEXED" if self.is_sqlite else ""

    def render(self, sql: Sql) -> str:
        """Return the text of a statement for this database."""
        return _render(self, sql)

    def lock(self, clause: str) -> str:
        """Return a clause such as `FOR UPDATE`; empty on SQLite, which has one writer."""
        return "" if self.is_sqlite else f" {clause}"

    def placeholders(self, count: int) -> str:
        """Return placeholders for a number of parameters."""
        return ", ".join([self.placeholder] * count)

    def elements(self, name: str) -> str:
        """Return a table `name` with a column `value`: the elements of a parameter from `array`."""
        if self.is_sqlite:
            return f"json_each(?) AS {name}"
        return f"unnest(?::text[]) AS {name} (value)"

    def in_array(self, column: str, kind: str) -> str:
        """Return the condition that a column has one of the values of a parameter from `array`."""
        if self.is_sqlite:
            return f"{column} IN (SELECT known.value FROM json_each(?) AS known)"
        return f"{column} = ANY (?::{kind}[])"

    def array(self, values: Iterable[str] | Iterable[int]) -> Value:
        """Return values as one parameter for `elements` or `in_array`."""
        found: list[str | int] = [*values]
        return msgspec.json.encode(found).decode() if self.is_sqlite else found


SQLITE = Dialect(placeholder="?", ordered_join="CROSS JOIN", is_sqlite=True)
POSTGRES = Dialect(placeholder="%s", ordered_join="JOIN", is_sqlite=False)


def variants(build: Callable[[Dialect], str]) -> Variants:
    """Return a statement whose text `build` returns for each dialect."""
    return Variants(build(SQLITE), build(POSTGRES))


def bulk_insert(into: str, types: str, on_conflict: str = "") -> Variants:
    """Return an INSERT for `execute_bulk`.

    Args:
        into: The table and its columns, for example `run_tags (tenant, tag)`.
        types: The PostgreSQL type of each column, separated by spaces.
        on_conflict: The rest of the statement.
    """
    names = types.split()
    arrays = ", ".join(f"?::{name}[]" for name in names)
    return Variants(
        sqlite=f"INSERT INTO {into} VALUES ({SQLITE.placeholders(len(names))}) {on_conflict}",
        postgres=f"INSERT INTO {into} SELECT * FROM unnest({arrays}) AS given {on_conflict}",
    )


@cache
def _render(dialect: Dialect, sql: Sql) -> str:
    if isinstance(sql, Variants):
        sql = sql.sqlite if dialect.is_sqlite else sql.postgres
    return sql.replace("?", dialect.placeholder)


def decode_names(encoded: bytes | None) -> tuple[str, ...]:
    """Decode a column of tags or other names."""
    return () if encoded is None else _texts.decode(encoded)


def encode_names(names: tuple[str, ...] | Mapping[str, str]) -> bytes | None:
    """Encode names for a column; None without names."""
    return msgspec.json.encode(names) if names else None
