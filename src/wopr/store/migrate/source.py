"""The source of a copy: the tables of a SQLite file, and their rows in the order of their keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wopr.protocol.errors import NotFound
from wopr.protocol.observed_ids import OBSERVED_PREFIX
from wopr.store.sqlite.connections import lock_database, open_reader, open_writer
from wopr.store.tables.dialect import SQLITE, Row

# PostgreSQL does not have these tables: `meta` is used by the health check, and `recovering` has
# the runs that a process recovers.
_NOT_COPIED: Final = ("meta", "recovering")
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_COLUMNS: Final = "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid"
_LAST_PLACES: Final = "SELECT name, seq FROM sqlite_sequence"
# A holder that does not exist, so that hosts release the run as after a crash of a process.
COPIED_HOLDER: Final = "moved from SQLite"
_HOLDER_VALUE: Final = (
    f"CASE WHEN t.ended_at IS NULL AND t.run_id NOT GLOB '{OBSERVED_PREFIX}*' "
    f"THEN '{COPIED_HOLDER}' END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table of the source. Its rows begin with the key, followed by the values of `columns`."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[str, ...]
    joined: str = ""

    def read_statement(self, *, from_start: bool) -> str:
        """Return the statement that reads all rows, or the rows after a key."""
        key = ", ".join(f"t.{name}" for name in self.key)
        condition = "" if from_start else f" WHERE ({key}) > ({SQLITE.placeholders(len(self.key))})"
        return (
            f"SELECT {key}, {', '.join(self.values)} FROM {self.name} t{self.joined}{condition} "
            f"ORDER BY {key}"
        )

    @property
    def count_statement(self) -> str:
        """Return the statement that counts the rows."""
        return f"SELECT count(*) FROM {self.name} t{self.joined}"


class SourceDatabase:
    """A snapshot of a SQLite database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [row[0] for row in connection.execute(_TABLES)]
        self.tables = [
            _table(connection, name)
            for name in names
            if name not in _NOT_COPIED and not name.startswith("sqlite_")
        ]

    def count(self, table: SourceTable) -> int:
        """Return the number of rows of a table."""
        count: int = self._connection.execute(table.count_statement).fetchone()[0]
        return count

    def rows(self, table: SourceTable, after: Sequence[str | int | bytes]) -> Iterator[Row]:
        """Read the rows after a key, in the order of the key; an empty key means all rows."""
        yield from self._connection.execute(table.read_statement(from_start=not after), after)

    def last_place(self, table: str, column: str) -> int:
        """Return the highest number that a table has used, including deleted rows."""
        given = dict(self._connection.execute(_LAST_PLACES)).get(table, 0)
        found = self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]
        return max(int(given), int(found or 0))


@contextmanager
def open_source(file: Path) -> Generator[SourceDatabase, None, None]:
    """Open a database that no host serves, and migrate its schema first.

    Raises `NotFound` if there is no such file, and `Conflict` if a host serves it.
    """
    if not file.is_file():
        raise NotFound(f"there is no database file {file.name}")
    with lock_database(file):
        open_writer(file).close()
        with closing(open_reader(file)) as connection:
            connection.execute("BEGIN")
            yield SourceDatabase(connection)


def _table(connection: sqlite3.Connection, name: str) -> SourceTable:
    described = connection.execute(_COLUMNS, (name,)).fetchall()
    names = [column for column, _ in described]
    keyed = sorted((place, column) for column, place in described if place)
    columns, values, joined = list(names), [f"t.{column}" for column in names], ""
    if "tenant" not in names and "run_id" in names:
        columns, values = [*columns, "tenant"], [*values, "r.tenant"]
        # In a cross join SQLite keeps the order of the tables, and looks up the run of each row.
        joined = " CROSS JOIN runs r ON r.run_id = t.run_id"
    if name == "runs":
        columns, values = [*columns, "holder"], [*values, _HOLDER_VALUE]
    return SourceTable(
        name=name,
        key=tuple(column for _, column in keyed),
        columns=tuple(columns),
        values=tuple(values),
        joined=joined,
    )
