"""Runs on SQLite: the append, and the reads of a run's row and log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port import Batch, RunRow, StoredEvent, StoredRun
from wopr.store.sqlite.append import append_batches
from wopr.store.sqlite.database import SqliteDatabase
from wopr.store.sqlite.reader import Reader
from wopr.store.sqlite.writer import Writer
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Parameter
from wopr.store.tables.runs.rows import RUN_COLUMNS, run_row
from wopr.store.tables.runs.runs import RunTable, check_batch


class SqliteTable(Table):
    """Base of the parts of the store that only SQLite has: they use the writer and the readers."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        super().__init__(SqliteDatabase(writer, reader))
        self._writer = writer
        self._reader = reader

    async def _change(self, sql: str, parameters: Sequence[Parameter] = ()) -> bool:
        """Run one statement durably; True when it changed a row."""
        return await self._sql.change_host(sql, parameters) > 0


_RUN = f"SELECT {RUN_COLUMNS} FROM runs r WHERE r.run_id = ? AND r.tenant = ?"

# The run's row has the tenant.
_EVENTS = """
SELECT e.sequence, e.type, e.body
FROM runs r CROSS JOIN events e ON e.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND e.sequence >= ?
ORDER BY e.sequence LIMIT ?
"""

# The number of events that are read on the event loop; the rest of a page is read in a thread.
_INLINE_EVENTS = 200


class SqliteRunLog(SqliteTable, RunTable):
    """`RunLog` on SQLite."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably.

        One process holds all runs, so every claim succeeds.
        """
        for batch in batches:
            check_batch(batch)
        await self._writer.submit(partial(append_batches, tenant=tenant, batches=tuple(batches)))
        return True

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
        if most_bytes is not None:
            wanted = (run_id, tenant, start, min(limit, _INLINE_EVENTS))
            rows = self._reader.read_bytes_inline(_EVENTS, wanted, most_bytes)
            return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]
        rows = self._reader.read_inline(
            _EVENTS, (run_id, tenant, start, min(limit, _INLINE_EVENTS))
        )
        if len(rows) == _INLINE_EVENTS < limit:
            rest = limit - _INLINE_EVENTS
            rows += await self._reader.read_in_thread(
                _EVENTS, (run_id, tenant, rows[-1][0] + 1, rest)
            )
        return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """Return the run's row."""
        rows = self._reader.read_inline(_RUN, (run_id, tenant))
        return run_row(rows[0]) if rows else None

    async def load_runs(
        self, tenant: str, run_ids: Sequence[str], most_events: int
    ) -> list[StoredRun]:
        """List runs of the tenant, each with up to `most_events` events from the first on."""
        rows = [row for run_id in run_ids if (row := await self.run(tenant, run_id)) is not None]
        return [
            StoredRun(row=row, events=await self.read(tenant, row.run_id, 0, most_events))
            for row in rows
        ]
