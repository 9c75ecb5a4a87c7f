"""The part that keeps which runs the fleet has not been told of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial

from wopr.store.port.projections import Unprojected
from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.sql.dialect import Row
from wopr.store.sqlite.part import Part

_PUT = "INSERT OR REPLACE INTO projections (tenant, run_id) VALUES (?, ?)"

# The conditions are as the indexes have them, letter by letter.
_WAITING = f"""
SELECT place, tenant, run_id FROM projections
WHERE run_id GLOB '{OBSERVED_PREFIX}*' = ? AND place > ? ORDER BY place LIMIT ?
"""

_WAITING_OF = f"""
SELECT place, tenant, run_id FROM projections
WHERE run_id GLOB '{OBSERVED_PREFIX}*' AND tenant = ? AND place > ? ORDER BY place LIMIT ?
"""

_WAITS = "SELECT 1 FROM projections WHERE run_id = ? AND tenant = ?"

_DELETE = "DELETE FROM projections WHERE place = ? AND tenant = ?"


class SqliteProjections(Part):
    """`Projections` on SQLite."""

    async def unprojected(
        self, after: int, limit: int, *, observed: bool = False
    ) -> list[Unprojected]:
        """Own or observed runs behind that place, longest waiting first."""
        return _entries(self._reader.near(_WAITING, (observed, after, limit)))

    async def unprojected_of(self, tenant: str, after: int, limit: int) -> list[Unprojected]:
        """Observed runs of one tenant behind that place, longest waiting first."""
        return _entries(self._reader.near(_WAITING_OF, (tenant, after, limit)))

    async def is_unprojected(self, tenant: str, run_id: str) -> bool:
        """Whether this run of the tenant waits in a queue."""
        return bool(self._reader.near(_WAITS, (run_id, tenant)))

    async def projected(self, done: Sequence[Unprojected]) -> None:
        """Take these out; one that has had news since keeps its new place."""
        await self._writer.submit(partial(_take_out, done=tuple(done)))


def _entries(rows: Iterable[Row]) -> list[Unprojected]:
    return [Unprojected(place=row[0], tenant=row[1], run_id=row[2]) for row in rows]


def put_projections(connection: sqlite3.Connection, tenant: str, run_ids: Iterable[str]) -> None:
    """Note that runs have news, behind all others."""
    connection.executemany(_PUT, [(tenant, run_id) for run_id in run_ids])


def _take_out(connection: sqlite3.Connection, done: Sequence[Unprojected]) -> None:
    connection.executemany(_DELETE, [(each.place, each.tenant) for each in done])
