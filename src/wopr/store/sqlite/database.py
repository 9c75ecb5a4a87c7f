"""`SqlDatabase` on SQLite: one writer, and readers that never wait for the writer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from wopr.protocol.errors import Unavailable
from wopr.store.sqlite.reader import Reader
from wopr.store.sqlite.writer import Writer
from wopr.store.tables.audit import AuditReaderTable
from wopr.store.tables.database import ByteLimit, SqlDatabase
from wopr.store.tables.dialect import SQLITE, Row, Sql, Value
from wopr.store.tables.statements import Lookup, LookupPlan, Operation, Statement, T


class SqliteDatabase(SqlDatabase):
    """One database file. Without a writer it is read-only."""

    dialect = SQLITE

    def __init__(self, writer: Writer | None, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def read_few(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows on the event loop."""
        return self._reader.read_inline(SQLITE.render(sql), values)

    async def read_many(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows in a thread."""
        return await self._reader.read_in_thread(SQLITE.render(sql), values)

    async def read_signed(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows on the event loop."""
        return self._reader.read_inline(SQLITE.render(sql), (tenant, *values))

    async def read_within(
        self, tenant: str, sql: Sql, values: Sequence[Value], limit: ByteLimit
    ) -> list[Row]:
        """Read rows in a thread until a column reaches a number of bytes."""
        return await self._reader.read_bytes_in_thread(
            SQLITE.render(sql),
            values,
            most_bytes=limit.most_bytes,
            column=limit.columns.split(", ").index(limit.column),
        )

    async def read_snapshot(self, tenant: str, plan: LookupPlan[T]) -> T:
        """Read in several steps in a thread."""
        return await self._reader.read_snapshot(partial(run_lookups, plan=plan))

    async def change(self, tenant: str, sql: Sql, values: Sequence[Value]) -> int:
        """Execute one statement durably."""
        return await self.change_host(sql, values)

    async def transact(self, tenant: str, operation: Callable[[], Operation[T]]) -> T:
        """Run an operation in one transaction."""
        return await self._submit(lambda connection: run_operation(connection, operation()))

    async def read_host_few(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows on the event loop."""
        return self._reader.read_inline(SQLITE.render(sql), values)

    async def read_host_many(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows in a thread."""
        return await self._reader.read_in_thread(SQLITE.render(sql), values)

    async def change_host(self, sql: Sql, values: Sequence[Value] = ()) -> int:
        """Execute one statement durably."""
        return await self._submit(partial(_change, sql=SQLITE.render(sql), values=values))

    def _submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        if self._writer is None:
            raise Unavailable("the database is open for reading only")
        return self._writer.submit(work)


def run_operation(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    """Run an operation inside the caller's transaction."""
    try:
        statement = next(operation)
        while True:
            statement = operation.send(_execute(connection, statement))
    except StopIteration as end:
        result: T = end.value
        return result


def run_lookups(connection: sqlite3.Connection, plan: LookupPlan[T]) -> T:
    """Run a lookup plan inside the caller's transaction."""
    try:
        lookups = next(plan)
        while True:
            lookups = plan.send([_look_up(connection, lookup) for lookup in lookups])
    except StopIteration as end:
        result: T = end.value
        return result


def _execute(connection: sqlite3.Connection, statement: Statement) -> list[Row]:
    sql = SQLITE.render(statement.sql)
    if not sql:
        return []
    if statement.mode == "query":
        return connection.execute(sql, statement.values[0]).fetchall()
    if statement.mode == "query_each":
        return [
            (number, *row)
            for number, key in enumerate(statement.values)
            for row in connection.execute(sql, key)
        ]
    if statement.mode == "query_bulk":
        return [row for values in statement.values for row in connection.execute(sql, values)]
    if len(statement.values) == 1:
        connection.execute(sql, statement.values[0])
    else:
        connection.executemany(sql, statement.values)
    return []


def _look_up(connection: sqlite3.Connection, lookup: Lookup) -> list[list[Row]]:
    return [connection.execute(lookup.sql, key).fetchall() for key in lookup.keys]


def _change(connection: sqlite3.Connection, sql: str, values: Sequence[Value]) -> int:
    return connection.execute(sql, values).rowcount


class AuditCopy(AuditReaderTable):
    """The audit log of a database file, or of a copy of the file."""

    def __init__(self, path: Path, *, is_copy: bool) -> None:
        # If the copy has a write-ahead log, the log must be read too.
        has_log = path.with_name(f"{path.name}-wal").exists()
        self._reader = Reader(path, immutable=is_copy and not has_log)
        super().__init__(SqliteDatabase(None, self._reader))

    def close(self) -> None:
        """Release the file."""
        self._reader.close()
