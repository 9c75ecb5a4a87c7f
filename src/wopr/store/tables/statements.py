"""Operations and reads of several statements, written once for both databases.

An `Operation` is a generator. It yields one `Statement` at a time, receives its rows, and returns a
result. `SqlDatabase.transact` runs it in one transaction. Operations call each other with
`yield from`:

    def _claim(tenant: str, invocation: Invocation) -> Operation[Invocation]:
        yield execute(_CLAIM, _invocation_values(tenant, invocation))
        [row] = yield query(_CLAIMED, (tenant, invocation.invocation_id))
        return _invocation(row)

An operation must be repeatable: after a deadlock it runs again from its start.

A `LookupPlan` is a generator for reads that have many keys. It yields several `Lookup`s at once and
receives the rows of each key. `SqlDatabase.read_snapshot` runs it; PostgreSQL needs one round trip
for each yield.

Statements have `?` for each parameter (see `dialect`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from wopr.store.tables.dialect import Parameter, Row, Sql, Value, Variants

T = TypeVar("T")


Mode: TypeAlias = Literal["query", "query_each", "query_bulk", "execute", "execute_bulk"]


class Statement(NamedTuple):
    """One statement, with the parameters of each time that it is executed."""

    sql: Sql
    values: Sequence[Sequence[Value]]
    mode: Mode


Operation: TypeAlias = Generator[Statement, list[Row], T]


def query(sql: Sql, values: Sequence[Value] = ()) -> Statement:
    """Execute a statement and receive its rows."""
    return Statement(sql, (values,), "query")


def query_each(sql: Sql, keys: Sequence[Sequence[Parameter]]) -> Statement:
    """Execute a read once for each key, and receive the rows of all keys.

    The first column of each row is the number of its key, from 0 on. PostgreSQL reads for all keys
    in one statement.
    """
    return Statement(sql, keys, "query_each")


def execute(sql: Sql, values: Sequence[Value] = ()) -> Statement:
    """Execute a statement; PostgreSQL does not wait for its end."""
    return Statement(sql, (values,), "execute")


def execute_many(sql: Sql, rows: Sequence[Sequence[Value]]) -> Statement:
    """Execute a statement once for each row of parameters."""
    return Statement(sql, rows, "execute")


def execute_bulk(sql: Variants, rows: Sequence[Sequence[Parameter | float]]) -> Statement:
    """Execute a statement for many rows.

    SQLite executes it once for each row. PostgreSQL executes it once, with one array for each
    column of the rows; `bulk_insert` builds such statements.
    """
    return Statement(sql, rows, "execute_bulk")


def query_bulk(sql: Variants, rows: Sequence[Sequence[Parameter | float]]) -> Statement:
    """Execute a statement for many rows as `execute_bulk` does, and receive the rows it returns."""
    return Statement(sql, rows, "query_bulk")


class Lookup(NamedTuple):
    """A statement that only reads, and the parameters of each time that it is executed."""

    sql: str
    keys: Sequence[tuple[Parameter, ...]]


# For each lookup, and in it for each of its keys, the rows.
LookupRows: TypeAlias = list[list[list[Row]]]
LookupPlan: TypeAlias = Generator[Sequence[Lookup], LookupRows, T]


def by_key(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """Group the rows of `query_each` by their key, without its number."""
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        number: int = row[0]
        found[number].append(row[1:])
    return found
