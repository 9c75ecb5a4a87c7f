"""The part that keeps which runs the fleet has not been told of."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.projections import Unprojected
from wopr.store.sqlite.part import Part

_PUT = "INSERT OR REPLACE INTO projections (tenant, run_id) VALUES (?, ?)"

_WAITING = "SELECT place, tenant, run_id FROM projections WHERE place > ? ORDER BY place LIMIT ?"

_DELETE = "DELETE FROM projections WHERE place = ? AND tenant = ?"


class SqliteProjections(Part):
    """`Projections` on SQLite."""

    async def unprojected(self, after: int, limit: int) -> list[Unprojected]:
        """Runs behind that place, longest waiting first."""
        rows = self._reader.near(_WAITING, (after, limit))
        return [Unprojected(place=p, tenant=tenant, run_id=run_id) for p, tenant, run_id in rows]

    async def projected(self, done: Sequence[Unprojected]) -> None:
        """Take these out; one that has had news since keeps its new place."""
        await self._writer.submit(partial(_take_out, done=tuple(done)))


def put_projection(connection: sqlite3.Connection, tenant: str, run_id: str) -> None:
    """Note that a run has news for the fleet, behind all others."""
    connection.execute(_PUT, (tenant, run_id))


def _take_out(connection: sqlite3.Connection, done: Sequence[Unprojected]) -> None:
    connection.executemany(_DELETE, [(each.place, each.tenant) for each in done])
