"""The PostgreSQL side: an empty database that is filled in transactions of one batch each."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, LiteralString, TypeAlias

import msgspec
import psycopg
from psycopg import Connection, sql

from wopr.protocol.errors import Conflict, Refused
from wopr.store.postgres.address import Address
from wopr.store.postgres.faults import translated
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS
from wopr.store.postgres.texts import hold_any_text
from wopr.store.sql.dialect import Row

Key: TypeAlias = tuple[str | int | bytes, ...]

# While this table is there, no host opens the database.
_PROGRESS: Final = """
CREATE TABLE IF NOT EXISTS moving (
    name text NOT NULL PRIMARY KEY, reached bytea NOT NULL, rows bigint NOT NULL
)
"""
_IS_MOVING: Final = "SELECT to_regclass('wopr.moving') IS NOT NULL"
_REACHED: Final = "SELECT name, reached, rows FROM moving"
_REACH: Final = """
INSERT INTO moving AS m (name, reached, rows) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET reached = excluded.reached, rows = m.rows + excluded.rows
"""
# What was moved stays on record, so that a second call after a complete move can say so.
_FINISH: Final = "ALTER TABLE moving RENAME TO moved"
_IS_MOVED: Final = "SELECT to_regclass('wopr.moved') IS NOT NULL"
_MOVED: Final = "SELECT name, rows FROM moved"
_LOCK: Final = "SELECT pg_try_advisory_lock(hashtext('wopr moving'))"
_SERVING: Final = f"""
SELECT process_id FROM processes
WHERE beat_at >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds' LIMIT 1
"""
# A column of a domain is of the type below it.
_COLUMNS: Final = """
SELECT c.relname, a.attname, coalesce(below.typname, t.typname), a.attidentity <> '',
    c.relforcerowsecurity
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type below ON below.oid = t.typbasetype
WHERE c.relnamespace = 'wopr'::regnamespace AND c.relkind = 'r'
ORDER BY c.relname, a.attnum
"""
_MAY_FILL: Final = """
SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class
WHERE oid = 'wopr.audit_entries'::regclass
"""


@dataclass(slots=True, kw_only=True)
class TargetTable:
    """A table as it is filled: the type of each column, and the one that gives itself numbers."""

    name: str
    types: dict[str, str]
    is_secured: bool
    numbered: str | None = None


class Target:
    """A database that is being filled."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._connection = connection
        self.tables = _tables(connection)
        self.reached: dict[str, tuple[Key, int]] = {}

    def begin(self, names: Sequence[str]) -> None:
        """Find where an earlier attempt came to; else refuse a database with rows in these tables."""
        [(is_moving,)] = self._rows(_IS_MOVING)
        if not is_moving:
            self._refuse_rows(names)
            self._connection.execute("DROP TABLE IF EXISTS moved")
            self._connection.execute(_PROGRESS)
        self.reached = {
            name: (tuple(msgspec.msgpack.decode(key)), rows)
            for name, key, rows in self._rows(_REACHED)
        }

    def moved(self) -> dict[str, int] | None:
        """Return the rows per table of a move that is complete, or None when there was none."""
        [(is_moved,)] = self._rows(_IS_MOVED)
        return {name: rows for name, rows in self._rows(_MOVED)} if is_moved else None

    def write(
        self, table: TargetTable, columns: Sequence[str], rows: Sequence[Row], reached: Key
    ) -> None:
        """Write rows and how far they reach, both or none."""
        flags = [place for place, name in enumerate(columns) if table.types[name] == "bool"]
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)")
        with self._connection.transaction(), self._unsecured([table]):
            with self._connection.cursor().copy(
                copying.format(sql.Identifier(table.name), names)
            ) as copy:
                copy.set_types([table.types[name] for name in columns])
                for row in rows:
                    copy.write_row(_with_flags(row, flags))
            key = msgspec.msgpack.encode(reached)
            self._connection.execute(_REACH, (table.name, key, len(rows)))

    def count(self, table: TargetTable) -> int:
        """How many rows a table has, of all tenants."""
        with self._connection.transaction(force_rollback=True), self._unsecured([table]):
            found = self._connection.execute(
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.name))
            ).fetchone()
        return int(found[0]) if found else 0

    def number_from(self, table: TargetTable, last: int) -> None:
        """Let a table give itself numbers above this one."""
        if table.numbered is not None and last:
            name = f"wopr.{table.name}"
            self._connection.execute(
                "SELECT setval(pg_get_serial_sequence(%s, %s), %s)", (name, table.numbered, last)
            )

    def finish(self) -> None:
        """Update the planner's statistics, then let hosts open the database.

        The rename is the last statement: a process that is killed before it has not finished, and
        one that is killed after it has nothing left to do.
        """
        self._connection.execute("ANALYZE")
        self._connection.execute(_FINISH)

    def _refuse_rows(self, names: Sequence[str]) -> None:
        tables = [self.tables[name] for name in names]
        with self._connection.transaction(force_rollback=True), self._unsecured(tables):
            for name in names:
                asked = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(name))
                if self._connection.execute(asked).fetchone() is not None:
                    raise Conflict(
                        f"the target is not empty: its table {name} has rows; name a new database"
                    )

    @contextmanager
    def _unsecured(self, tables: Sequence[TargetTable]) -> Generator[None, None, None]:
        """Lift row-level security inside a transaction, so that no other session is affected.

        No trigger fires: what triggers count is copied as it was counted.
        """
        secured = [sql.Identifier(table.name) for table in tables if table.is_secured]
        for name in secured:
            self._alter(name, "NO FORCE ROW LEVEL SECURITY")
            self._alter(name, "DISABLE TRIGGER USER")
        yield
        for name in secured:
            self._alter(name, "ENABLE TRIGGER USER")
            self._alter(name, "FORCE ROW LEVEL SECURITY")

    def _alter(self, table: sql.Identifier, change: LiteralString) -> None:
        self._connection.execute(sql.SQL("ALTER TABLE {} ").format(table) + sql.SQL(change))

    def _rows(self, statement: str) -> list[Row]:
        return self._connection.execute(statement.encode()).fetchall()


@contextmanager
def opened_target(address: Address) -> Generator[Target, None, None]:
    """Connect to a migrated database that no host serves, as its owner.

    Raises `Conflict` while a host serves it or another process fills it, and `Refused` when the
    login does not own the tables.
    """
    try:
        with psycopg.connect(address.connecting("search_path=wopr"), autocommit=True) as connection:
            hold_any_text(connection)
            _require_alone(connection)
            yield Target(connection)
    except psycopg.Error as error:
        raise translated(error) from error


def _require_alone(connection: Connection[Row]) -> None:
    [(may_fill,)] = connection.execute(_MAY_FILL).fetchall()
    if not may_fill:
        raise Refused("the target's login must own its tables: name the owner's URL", field="to")
    [(is_ours,)] = connection.execute(_LOCK).fetchall()
    if not is_ours:
        raise Conflict("another process is moving a database into this one")
    if found := connection.execute(_SERVING.encode()).fetchall():
        raise Conflict(f"the process {found[0][0]} serves the target: stop every host of it first")


def _tables(connection: Connection[Row]) -> dict[str, TargetTable]:
    found: dict[str, TargetTable] = {}
    for name, column, kind, is_numbered, is_secured in connection.execute(_COLUMNS):
        table = found.setdefault(name, TargetTable(name=name, types={}, is_secured=is_secured))
        table.types[column] = kind
        if is_numbered:
            table.numbered = column
    return found


def _with_flags(row: Row, flags: Sequence[int]) -> Sequence[object]:
    """A row whose numbers at these places are truth values."""
    if not flags:
        return row
    values = list(row)
    for place in flags:
        values[place] = bool(values[place])
    return values
