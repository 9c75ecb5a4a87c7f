"""The target of a copy: an empty PostgreSQL database, filled in one transaction per batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, LiteralString, TypeAlias

import msgspec
import psycopg
from psycopg import Connection, sql

from wopr.protocol.errors import Conflict, Refused
from wopr.store.postgres.faults import translate_error
from wopr.store.postgres.pool import Address
from wopr.store.postgres.schema_constants import DEAD_AFTER_SECONDS
from wopr.store.postgres.texts import escape_texts
from wopr.store.tables.dialect import Row

Key: TypeAlias = tuple[str | int | bytes, ...]

# While this table exists, no host opens the database.
_PROGRESS: Final = """
CREATE TABLE IF NOT EXISTS moving (
    name text NOT NULL PRIMARY KEY, reached bytea NOT NULL, rows bigint NOT NULL
)
"""
_IS_MOVING: Final = "SELECT to_regclass('wopr.moving') IS NOT NULL"
_READ_PROGRESS: Final = "SELECT name, reached, rows FROM moving"
_RECORD_PROGRESS: Final = """
INSERT INTO moving AS m (name, reached, rows) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET reached = excluded.reached, rows = m.rows + excluded.rows
"""
# The table is renamed and not deleted, so that a second call detects the complete copy.
_FINISH: Final = "ALTER TABLE moving RENAME TO moved"
_IS_MOVED: Final = "SELECT to_regclass('wopr.moved') IS NOT NULL"
_MOVED: Final = "SELECT name, rows FROM moved"
_LOCK: Final = "SELECT pg_try_advisory_lock(hashtext('wopr moving'))"
_SERVING: Final = f"""
SELECT process_id FROM processes
WHERE beat_at >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds' LIMIT 1
"""
# For a column of a domain, the base type of the domain.
_COLUMNS: Final = """
SELECT c.relname, a.attname, coalesce(below.typname, t.typname), a.attidentity <> '',
    c.relforcerowsecurity
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type below ON below.oid = t.typbasetype
WHERE c.relnamespace = 'wopr'::regnamespace AND c.relkind = 'r'
ORDER BY c.relname, a.attnum
"""
_OWNS_TABLES: Final = """
SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class
WHERE oid = 'wopr.audit_entries'::regclass
"""


@dataclass(slots=True, kw_only=True)
class TargetTable:
    """A table of the target: the type of each column, and its identity column."""

    name: str
    types: dict[str, str]
    is_secured: bool
    identity_column: str | None = None


class TargetDatabase:
    """The database that the copy writes, with the progress of each table."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._connection = connection
        self.tables = _tables(connection)
        self.reached: dict[str, tuple[Key, int]] = {}

    def begin(self, names: Sequence[str]) -> None:
        """Read the progress of an earlier attempt. For a new copy, refuse a target with rows."""
        [(is_moving,)] = self._rows(_IS_MOVING)
        if not is_moving:
            self._refuse_rows(names)
            self._connection.execute("DROP TABLE IF EXISTS moved")
            self._connection.execute(_PROGRESS)
        self.reached = {
            name: (tuple(msgspec.msgpack.decode(key)), rows)
            for name, key, rows in self._rows(_READ_PROGRESS)
        }

    def completed_copy(self) -> dict[str, int] | None:
        """Return the rows per table of a complete copy, or None if there is no complete copy."""
        [(is_moved,)] = self._rows(_IS_MOVED)
        return {name: rows for name, rows in self._rows(_MOVED)} if is_moved else None

    def write(
        self, table: TargetTable, columns: Sequence[str], rows: Sequence[Row], reached: Key
    ) -> None:
        """Write rows and their progress in one transaction."""
        flags = [place for place, name in enumerate(columns) if table.types[name] == "bool"]
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)")
        with self._connection.transaction(), self._without_row_security([table]):
            with self._connection.cursor().copy(
                copying.format(sql.Identifier(table.name), names)
            ) as copy:
                copy.set_types([table.types[name] for name in columns])
                for row in rows:
                    copy.write_row(_with_flags(row, flags))
            key = msgspec.msgpack.encode(reached)
            self._connection.execute(_RECORD_PROGRESS, (table.name, key, len(rows)))

    def count(self, table: TargetTable) -> int:
        """Return the number of rows of a table, of all tenants."""
        with self._connection.transaction(force_rollback=True), self._without_row_security([table]):
            found = self._connection.execute(
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.name))
            ).fetchone()
        return int(found[0]) if found else 0

    def set_identity(self, table: TargetTable, last: int) -> None:
        """Set the sequence of an identity column, so that new numbers are higher than this one."""
        if table.identity_column is not None and last:
            name = f"wopr.{table.name}"
            self._connection.execute(
                "SELECT setval(pg_get_serial_sequence(%s, %s), %s)",
                (name, table.identity_column, last),
            )

    def finish(self) -> None:
        """Update the planner's statistics, then allow hosts to open the database.

        The rename is the last statement, so that an interrupted call leaves the copy unfinished.
        """
        self._connection.execute("ANALYZE")
        self._connection.execute(_FINISH)

    def _refuse_rows(self, names: Sequence[str]) -> None:
        tables = [self.tables[name] for name in names]
        with self._connection.transaction(force_rollback=True), self._without_row_security(tables):
            for name in names:
                statement = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(name))
                if self._connection.execute(statement).fetchone() is not None:
                    raise Conflict(
                        f"the target is not empty: its table {name} has rows; use a new database"
                    )

    @contextmanager
    def _without_row_security(self, tables: Sequence[TargetTable]) -> Generator[None, None, None]:
        """Disable row-level security inside a transaction, so that no other session is affected.

        Triggers are off: the counters that they maintain are copied as rows.
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
def open_target(address: Address) -> Generator[TargetDatabase, None, None]:
    """Connect to a migrated database that no host serves, as its owner.

    Raises `Conflict` if a host serves it or another process writes a copy to it, and `Refused` if
    the login does not own the tables.
    """
    try:
        with psycopg.connect(
            address.conninfo_with("search_path=wopr"), autocommit=True
        ) as connection:
            escape_texts(connection)
            _require_alone(connection)
            yield TargetDatabase(connection)
    except psycopg.Error as error:
        raise translate_error(error) from error


def _require_alone(connection: Connection[Row]) -> None:
    [(owns_tables,)] = connection.execute(_OWNS_TABLES).fetchall()
    if not owns_tables:
        raise Refused(
            "the target's login must own its tables: use the URL of the owner", field="to"
        )
    [(is_acquired,)] = connection.execute(_LOCK).fetchall()
    if not is_acquired:
        raise Conflict("another process is copying a database into this one")
    if found := connection.execute(_SERVING.encode()).fetchall():
        raise Conflict(f"the process {found[0][0]} serves the target: stop all its hosts first")


def _tables(connection: Connection[Row]) -> dict[str, TargetTable]:
    found: dict[str, TargetTable] = {}
    for name, column, kind, is_identity, is_secured in connection.execute(_COLUMNS):
        table = found.setdefault(name, TargetTable(name=name, types={}, is_secured=is_secured))
        table.types[column] = kind
        if is_identity:
            table.identity_column = column
    return found


def _with_flags(row: Row, flags: Sequence[int]) -> Sequence[object]:
    """Return a row with booleans at these positions."""
    if not flags:
        return row
    values = list(row)
    for place in flags:
        values[place] = bool(values[place])
    return values
