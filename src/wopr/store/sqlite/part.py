"""What the parts of the store share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.sql.asking import Asking, T
from wopr.store.sql.dialect import Parameter, Row
from wopr.store.sql.reads import Reads
from wopr.store.sqlite.asking import answered
from wopr.store.sqlite.reader import Reader
from wopr.store.sqlite.writer import Writer


class Part(Reads):
    """One of the port's protocols, on the database's one writer and its readers."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def _change(self, sql: str, parameters: Sequence[Parameter] = ()) -> bool:
        """Run one statement durably; True when it changed a row."""
        return await self._writer.submit(partial(_changed, sql=sql, parameters=parameters))

    async def _read_few(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        return self._reader.near(sql, parameters)

    async def _read_many(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        return await self._reader.far(sql, parameters)

    async def _read_together(self, tenant: str, asking: Asking[T]) -> T:
        return await self._reader.together(lambda connection: answered(connection, asking))


def _changed(connection: sqlite3.Connection, sql: str, parameters: Sequence[Parameter]) -> bool:
    return connection.execute(sql, parameters).rowcount > 0
