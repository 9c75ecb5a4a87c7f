"""The SQLite side: which tables there are, and their rows in the order of their keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wopr.protocol.errors import NotFound
from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.sql.dialect import SQLITE, Row
from wopr.store.sqlite.connect import open_reader, open_writer
from wopr.store.sqlite.serving import served_alone

# `meta` counts how often a file was asked whether it takes a write, and `recovering` names the runs
# that a process recovers. PostgreSQL has neither.
_LEFT_BEHIND: Final = ("meta", "recovering")
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_COLUMNS: Final = "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid"
_LAST_PLACES: Final = "SELECT name, seq FROM sqlite_sequence"
# Whoever had a run is gone: it is taken up as a dead process's runs are.
MOVED: Final = "moved from SQLite"
_HOLDER: Final = (
    f"CASE WHEN t.ended_at IS NULL AND t.run_id NOT GLOB '{OBSERVED_PREFIX}*' THEN '{MOVED}' END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table as it is read: its rows begin with the values of its key, then those of `columns`."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[str, ...]
    joined: str = ""

    def statement(self, *, from_start: bool) -> str:
        """What reads the rows, all of them or those behind a key."""
        key = ", ".join(f"t.{name}" for name in self.key)
        behind = "" if from_start else f" WHERE ({key}) > ({SQLITE.marks(len(self.key))})"
        return (
            f"SELECT {key}, {', '.join(self.values)} FROM {self.name} t{self.joined}{behind} "
            f"ORDER BY {key}"
        )

    @property
    def counting(self) -> str:
        """What counts the rows."""
        return f"SELECT count(*) FROM {self.name} t{self.joined}"


class Source:
    """One view of a SQLite database, whatever is written meanwhile."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [row[0] for row in connection.execute(_TABLES)]
        self.tables = [
            _table(connection, name)
            for name in names
            if name not in _LEFT_BEHIND and not name.startswith("sqlite_")
        ]

    def count(self, table: SourceTable) -> int:
        """How many rows a table has."""
        count: int = self._connection.execute(table.counting).fetchone()[0]
        return count

    def rows(self, table: SourceTable, after: Sequence[str | int | bytes]) -> Iterator[Row]:
        """Rows in the order of their key, from behind that key on; an empty one is before all."""
        yield from self._connection.execute(table.statement(from_start=not after), after)

    def last_place(self, table: str, column: str) -> int:
        """The highest number that a table has given, to a row that may be gone since."""
        given = dict(self._connection.execute(_LAST_PLACES)).get(table, 0)
        found = self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]
        return max(int(given), int(found or 0))


@contextmanager
def opened_source(file: Path) -> Generator[Source, None, None]:
    """Read a database that no host serves, brought up to date first.

    Raises `NotFound` when there is no such file, and `Conflict` while a host serves it.
    """
    if not file.is_file():
        raise NotFound(f"there is no database file {file.name}")
    with served_alone(file):
        open_writer(file).close()
        with closing(open_reader(file)) as connection:
            connection.execute("BEGIN")
            yield Source(connection)


def _table(connection: sqlite3.Connection, name: str) -> SourceTable:
    described = connection.execute(_COLUMNS, (name,)).fetchall()
    names = [column for column, _ in described]
    keyed = sorted((place, column) for column, place in described if place)
    columns, values, joined = list(names), [f"t.{column}" for column in names], ""
    if "tenant" not in names and "run_id" in names:
        columns, values = [*columns, "tenant"], [*values, "r.tenant"]
        # The order of a cross join is kept: the run is looked up for each row.
        joined = " CROSS JOIN runs r ON r.run_id = t.run_id"
    if name == "runs":
        columns, values = [*columns, "holder"], [*values, _HOLDER]
    return SourceTable(
        name=name,
        key=tuple(column for _, column in keyed),
        columns=tuple(columns),
        values=tuple(values),
        joined=joined,
    )
