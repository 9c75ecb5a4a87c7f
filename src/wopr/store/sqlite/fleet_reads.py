"""The part that reads KAHN runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial

from wopr.store.sql.fleet_reads import FleetReads
from wopr.store.sqlite.fleet_runs import as_array, runs_of
from wopr.store.sqlite.part import Part

_PUSHED = """
SELECT body FROM fleet_chunks WHERE tenant = ? AND run_id = ? AND first >= ? ORDER BY first
"""
_NAMESAKES = """
SELECT run_id FROM json_each(?) AS known
CROSS JOIN runs ON run_id = known.value AND tenant = ?
"""


class SqliteFleetReads(Part, FleetReads):
    """Reads of `Fleet` on SQLite."""

    async def fleet_news(
        self, tenant: str, starts: Mapping[str, int], most_bytes: int
    ) -> dict[str, list[bytes]]:
        """What was pushed of each of these runs from a place on, where a push begins."""
        return await self._reader.together(
            partial(_news, tenant=tenant, starts=starts, most_bytes=most_bytes)
        )

    async def fleet_namesakes(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Those of these ids that a run of the tenant on this host has."""
        rows = await self._reader.far(_NAMESAKES, (as_array(run_ids), tenant))
        return {row[0] for row in rows}


def _news(
    connection: sqlite3.Connection, tenant: str, starts: Mapping[str, int], most_bytes: int
) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for run_id, run in runs_of(connection, tenant, starts).items():
        if run.lines <= starts[run_id]:
            continue
        for (body,) in connection.execute(_PUSHED, (tenant, run_id, starts[run_id])):
            found.setdefault(run_id, []).append(body)
            most_bytes -= len(body)
            if most_bytes <= 0:
                return found
    return found
