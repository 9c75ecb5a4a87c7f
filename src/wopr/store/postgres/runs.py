"""Runs on PostgreSQL: the append, and the reads of a run's row and log.

The reads call functions with the tenant's signed token, which is one statement in one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wopr.store.port import Batch, RunRow, StoredEvent, StoredRun
from wopr.store.postgres.append import AppendBatcher
from wopr.store.postgres.database import Database, limited_to_bytes
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Row
from wopr.store.tables.runs.rows import RUN_COLUMNS, run_row
from wopr.store.tables.runs.runs import RunTable, check_batch


class PostgresTable(Table):
    """Base of the parts of the store that only PostgreSQL has: they use its pool and appends."""

    def __init__(self, db: Database, appends: AppendBatcher) -> None:
        super().__init__(db)
        self._db = db
        self._appends = appends


_RUN = f"SELECT {RUN_COLUMNS}, r.holder, r.wakes FROM signed_run(%s, %s) r"

_EVENTS = "SELECT sequence, type, body FROM signed_events(%s, %s, %s, %s)"
_EVENTS_OF_SIZE = limited_to_bytes(
    _EVENTS, column="body", columns="sequence, type, body", order="sequence"
)

_LOAD = f"""
SELECT {RUN_COLUMNS}, r.holder, r.wakes, l.types, l.bodies
FROM signed_logs(%s, %s::text[], %s) l CROSS JOIN LATERAL (SELECT (l.run).*) r
"""


class PostgresRunLog(PostgresTable, RunTable):
    """`RunLog` on PostgreSQL."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process holds a claimed run."""
        for batch in batches:
            check_batch(batch)
        return await self._appends.append(tenant, batches) if batches else True

    async def read(
        self,
        tenant: str,
        run_id: str,
        start: int = 0,
        limit: int = 100,
        *,
        most_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Read events from `start` on, in order, up to a number or a size."""
        if most_bytes is None:
            rows = await self._db.read_signed(tenant, _EVENTS, (run_id, start, limit))
        else:
            wanted = (run_id, start, limit, most_bytes)
            rows = await self._db.read_signed(tenant, _EVENTS_OF_SIZE, wanted)
        return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """Return the run's row."""
        rows = await self._db.read_signed(tenant, _RUN, (run_id,))
        return _run_row(rows[0]) if rows else None

    async def load_runs(
        self, tenant: str, run_ids: Sequence[str], most_events: int
    ) -> list[StoredRun]:
        """List runs of the tenant, each with up to `most_events` events, in one statement."""
        return [
            StoredRun(row=_run_row(tuple(row)), events=_events(types, bodies))
            for *row, types, bodies in await self._db.read_signed(
                tenant, _LOAD, (list(run_ids), most_events)
            )
        ]


def _events(types: list[str] | None, bodies: list[bytes]) -> list[StoredEvent]:
    """Return the first events of a log; a log has no gaps."""
    return [
        StoredEvent(sequence=sequence, type=event_type, body=body)
        for sequence, (event_type, body) in enumerate(zip(types or (), bodies, strict=True))
    ]


def _run_row(row: Row) -> RunRow:
    """Return a run's row, including the columns that only PostgreSQL has."""
    *own, holder, wakes = row
    return replace(run_row(tuple(own)), holder=holder, wakes=wakes)
