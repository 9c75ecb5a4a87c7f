"""Reads, on connections that cannot write and never wait for the writer.

A point read (one run, one page of a log, one key) costs about 10 µs, and a switch to a thread and
back about 60. So point reads run on the event loop. A read that may have many rows, such as a
listing, runs in a thread with a separate connection.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from wopr.store.sqlite.connections import open_reader, unavailable_error
from wopr.store.tables.dialect import Row, Value

T = TypeVar("T")

_THREADS = 2


class Reader:
    """One connection for point reads on the event loop, and two for threads."""

    def __init__(self, path: Path, *, immutable: bool = False) -> None:
        self._inline = open_reader(path, immutable=immutable)
        self._threaded = deque(open_reader(path, immutable=immutable) for _ in range(_THREADS))
        self._limiter = anyio.CapacityLimiter(_THREADS)

    def read_inline(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Read a few rows by key, in the caller's thread."""
        return _rows(self._inline, sql, parameters)

    def read_bytes_inline(
        self, sql: str, parameters: Sequence[Value], most_bytes: int
    ) -> list[Row]:
        """Read rows in the caller's thread until their last columns have `most_bytes` bytes."""
        try:
            return _rows_within(self._inline, sql, parameters, most_bytes, -1)
        except sqlite3.Error as error:
            raise unavailable_error(error) from error

    async def read_in_thread(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Read rows in a thread, without blocking the event loop."""
        return await anyio.to_thread.run_sync(
            partial(self._read, sql, parameters), limiter=self._limiter
        )

    async def read_bytes_in_thread(
        self, sql: str, parameters: Sequence[Value], *, most_bytes: int, column: int
    ) -> list[Row]:
        """Read rows in a thread until a column reaches `most_bytes` bytes in total."""
        return await self.read_snapshot(
            lambda connection: _rows_within(connection, sql, parameters, most_bytes, column)
        )

    async def read_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read in a thread with several statements, all of which see the same commit."""
        return await anyio.to_thread.run_sync(partial(self._work, work), limiter=self._limiter)

    def close(self) -> None:
        """Release the connections."""
        for connection in (self._inline, *self._threaded):
            connection.close()

    def _read(self, sql: str, parameters: Sequence[Value]) -> list[Row]:
        # The limiter admits no more threads than there are connections.
        connection = self._threaded.pop()
        try:
            return _rows(connection, sql, parameters)
        finally:
            self._threaded.append(connection)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._threaded.pop()
        try:
            return _snapshot(connection, work)
        finally:
            self._threaded.append(connection)


def _rows_within(
    connection: sqlite3.Connection,
    sql: str,
    parameters: Sequence[Value],
    most_bytes: int,
    column: int,
) -> list[Row]:
    """Return rows up to the row at which a column reaches `most_bytes` bytes in total."""
    rows: list[Row] = []
    size = 0
    cursor = connection.execute(sql, parameters)
    while size < most_bytes and (row := cursor.fetchone()) is not None:
        rows.append(row)
        size += len(row[column])
    cursor.close()
    return rows


def _snapshot(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    try:
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise unavailable_error(error) from error


def _rows(connection: sqlite3.Connection, sql: str, parameters: Sequence[Value]) -> list[Row]:
    try:
        return connection.execute(sql, parameters).fetchall()
    except sqlite3.Error as error:
        raise unavailable_error(error) from error
