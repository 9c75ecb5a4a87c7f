"""Reads, on connections that cannot write and never wait for the writer.

A point read (one run, one page of a log, one key) costs about 10 µs, and a hop to a thread and back
about 60: so point reads run right on the event loop. Whatever may touch many rows, such as a
listing, goes to a thread with a connection of its own.
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

from wopr.store.sql.dialect import Parameter, Row
from wopr.store.sqlite.connect import open_reader
from wopr.store.sqlite.faults import unavailable

T = TypeVar("T")

_THREADS = 2


class Reader:
    """One connection for the event loop's point reads, and two for the threads'."""

    def __init__(self, path: Path, *, immutable: bool = False) -> None:
        self._near = open_reader(path, immutable=immutable)
        self._far = deque(open_reader(path, immutable=immutable) for _ in range(_THREADS))
        self._turns = anyio.CapacityLimiter(_THREADS)

    def near(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[Row]:
        """Read a few rows by key, on the caller's thread."""
        return _rows(self._near, sql, parameters)

    def near_bytes(self, sql: str, parameters: Sequence[Parameter], most_bytes: int) -> list[Row]:
        """Read rows on the caller's thread until their last columns come to so many bytes."""
        try:
            return _rows_within(self._near, sql, parameters, most_bytes, -1)
        except sqlite3.Error as error:
            raise unavailable(error) from error

    async def far(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[Row]:
        """Read rows on a thread, so that the event loop goes on meanwhile."""
        return await anyio.to_thread.run_sync(
            partial(self._read_far, sql, parameters), limiter=self._turns
        )

    async def far_bytes(
        self, sql: str, parameters: Sequence[Parameter], *, most_bytes: int, column: int
    ) -> list[Row]:
        """Read rows on a thread until this column of them comes to so many bytes."""
        return await self.together(
            lambda connection: _rows_within(connection, sql, parameters, most_bytes, column)
        )

    async def together(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read with several statements on a thread, all of which see the same commit."""
        return await anyio.to_thread.run_sync(partial(self._work_far, work), limiter=self._turns)

    def close(self) -> None:
        """Release the connections."""
        for connection in (self._near, *self._far):
            connection.close()

    def _read_far(self, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        # The limiter lets in no more threads than there are connections.
        connection = self._far.pop()
        try:
            return _rows(connection, sql, parameters)
        finally:
            self._far.append(connection)

    def _work_far(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._far.pop()
        try:
            return _snapshot(connection, work)
        finally:
            self._far.append(connection)


def _rows_within(
    connection: sqlite3.Connection,
    sql: str,
    parameters: Sequence[Parameter],
    most_bytes: int,
    column: int,
) -> list[Row]:
    """Rows up to the one that brings a column to so many bytes."""
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
        raise unavailable(error) from error


def _rows(connection: sqlite3.Connection, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
    try:
        return connection.execute(sql, parameters).fetchall()
    except sqlite3.Error as error:
        raise unavailable(error) from error
