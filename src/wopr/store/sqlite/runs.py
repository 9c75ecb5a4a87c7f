"""The part that keeps runs and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from wopr.store.port import Artifact, Batch, RunFilter, RunPage, RunRow, StoredEvent, StoredRun
from wopr.store.sql.batches import check_batch
from wopr.store.sql.dialect import SQLITE
from wopr.store.sql.listing import listing, run_page
from wopr.store.sql.mentions import event_of
from wopr.store.sql.rows import ARTIFACT_COLUMNS, RUN_COLUMNS, artifact_row, run_row
from wopr.store.sqlite.append import ACTIVE_RUNS, append_batches
from wopr.store.sqlite.part import Part

_RUN = f"SELECT {RUN_COLUMNS} FROM runs r WHERE r.run_id = ? AND r.tenant = ?"

# The run's row is the way to its log, and it is there that the tenant is checked.
_EVENTS = """
SELECT e.sequence, e.type, e.body
FROM runs r CROSS JOIN events e ON e.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND e.sequence >= ?
ORDER BY e.sequence LIMIT ?
"""

# Whatever mentions the id, found by its bytes: the event itself, and perhaps others that point at
# it. An index of event ids would be paid for at each event; this is paid for when one is asked for.
_MENTIONS = """
SELECT e.sequence, e.type, e.body
FROM runs r CROSS JOIN events e ON e.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND e.sequence >= ? AND instr(e.body, ?) > 0
ORDER BY e.sequence LIMIT ?
"""

_SET_WISH = """
UPDATE runs SET wish = ?, wake_at = ?
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL AND wish IS NULL
"""

_ARTIFACT = f"""
SELECT {ARTIFACT_COLUMNS}
FROM runs r CROSS JOIN artifacts a ON a.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND a.artifact_id = ?
"""

_EXPIRED = "SELECT 1 FROM expired_runs WHERE tenant = ? AND run_id = ?"

# So much of a page is read on the event loop; only what goes beyond is worth the hop to a thread.
_NEAR_EVENTS = 200
_MENTIONS_AT_ONCE = 20


class SqliteRunLog(Part):
    """`RunLog` on SQLite."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably. One process has all runs, so no claim is refused."""
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
        """Events from `start` on, in order, up to a number or a size."""
        if most_bytes is not None:
            wanted = (run_id, tenant, start, min(limit, _NEAR_EVENTS))
            rows = self._reader.near_bytes(_EVENTS, wanted, most_bytes)
            return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]
        rows = self._reader.near(_EVENTS, (run_id, tenant, start, min(limit, _NEAR_EVENTS)))
        if len(rows) == _NEAR_EVENTS < limit:
            rest = limit - _NEAR_EVENTS
            rows += await self._reader.far(_EVENTS, (run_id, tenant, rows[-1][0] + 1, rest))
        return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """The event with that id, or None."""
        needle, start = msgspec.json.encode(event_id), 0
        while rows := await self._reader.far(
            _MENTIONS, (run_id, tenant, start, needle, _MENTIONS_AT_ONCE)
        ):
            if found := event_of(rows, event_id):
                return found
            start = rows[-1][0] + 1
        return None

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """The run's row."""
        rows = self._reader.near(_RUN, (run_id, tenant))
        return run_row(rows[0]) if rows else None

    async def load(self, tenant: str, run_ids: Sequence[str], most_events: int) -> list[StoredRun]:
        """Runs of the tenant, each with up to `most_events` events from the first on."""
        rows = [row for run_id in run_ids if (row := await self.run(tenant, run_id)) is not None]
        return [
            StoredRun(row=row, events=await self.read(tenant, row.run_id, 0, most_events))
            for row in rows
        ]

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """A page of runs, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        rows = await self._reader.far(*listing(SQLITE, tenant, where, after, limit + 1))
        return run_page(rows, limit)

    async def set_wish(self, tenant: str, run_id: str, body: bytes, now: int) -> bool:
        """Leave a wish on an unfinished run that has none, and wake it."""
        return await self._change(_SET_WISH, (body, now, run_id, tenant))

    async def active_runs(self, tenant: str) -> int:
        """How many runs of the tenant have not ended."""
        rows = self._reader.near(ACTIVE_RUNS, (tenant,))
        return int(rows[0][0]) if rows else 0

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """An artifact of the run, or None."""
        rows = self._reader.near(_ARTIFACT, (run_id, tenant, artifact_id))
        return artifact_row(rows[0]) if rows else None

    async def expired(self, tenant: str, run_id: str) -> bool:
        """Whether retention removed this run of the tenant."""
        return bool(self._reader.near(_EXPIRED, (tenant, run_id)))
