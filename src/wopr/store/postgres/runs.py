"""The part that keeps runs and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from wopr.store.port import Artifact, Batch, RunFilter, RunPage, RunRow, StoredEvent, StoredRun
from wopr.store.postgres.append import URGENT
from wopr.store.postgres.part import Part
from wopr.store.sql.batches import check_batch
from wopr.store.sql.dialect import POSTGRES, Row
from wopr.store.sql.listing import listing, run_page
from wopr.store.sql.mentions import event_of
from wopr.store.sql.rows import ARTIFACT_COLUMNS, RUN_COLUMNS, artifact_row, run_row

_RUN = f"SELECT {RUN_COLUMNS}, r.holder, r.wakes FROM signed_run(%s, %s) r"

_EVENTS = "SELECT sequence, type, body FROM signed_events(%s, %s, %s, %s)"
# The length of a body is known without reading it.
_EVENTS_OF_SIZE = """
SELECT sequence, type, body
FROM (
    SELECT *, sum(length(body)) OVER (ORDER BY sequence) - length(body) AS before
    FROM signed_events(%s, %s, %s, %s)
) sized
WHERE before < %s
ORDER BY sequence
"""

_LOAD = f"""
SELECT {RUN_COLUMNS}, r.holder, r.wakes, l.types, l.bodies
FROM signed_logs(%s, %s::text[], %s) l CROSS JOIN LATERAL (SELECT (l.run).*) r
"""

# Whatever mentions the id, found by its bytes: the event itself, and perhaps others that point at
# it. An index of event ids would be paid for at each event; this is paid for when one is asked for.
_MENTIONS = """
SELECT sequence, type, body FROM events
WHERE run_id = %s AND tenant = %s AND sequence >= %s AND position(%s IN body) > 0
ORDER BY sequence LIMIT %s
"""

_SET_WISH = f"""
WITH wished AS (
    UPDATE runs SET wish = %s, wake_at = %s
    WHERE run_id = %s AND tenant = %s AND ended_at IS NULL AND wish IS NULL
    RETURNING tenant, run_id, holder
) SELECT wake_run(tenant, run_id, holder, {URGENT}) FROM wished
"""

_ARTIFACT = f"""
SELECT {ARTIFACT_COLUMNS} FROM artifacts a
WHERE a.run_id = %s AND a.tenant = %s AND a.artifact_id = %s
"""

_ACTIVE_RUNS = "SELECT coalesce(sum(runs), 0)::bigint FROM active_runs WHERE tenant = %s"

_EXPIRED = "SELECT 1 FROM expired_runs WHERE tenant = %s AND run_id = %s"

_MENTIONS_AT_ONCE = 20


class PostgresRunLog(Part):
    """`RunLog` on PostgreSQL."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process has what is claimed."""
        for batch in batches:
            check_batch(batch)
        return await self._lanes.append(tenant, batches) if batches else True

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
        if most_bytes is None:
            rows = await self._db.call(tenant, _EVENTS, (run_id, start, limit))
        else:
            wanted = (run_id, start, limit, most_bytes)
            rows = await self._db.call(tenant, _EVENTS_OF_SIZE, wanted)
        return [StoredEvent(sequence=s, type=t, body=b) for s, t, b in rows]

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """The event with that id, or None."""
        needle, start = msgspec.json.encode(event_id), 0
        while rows := await self._db.read(
            tenant, _MENTIONS, (run_id, tenant, start, needle, _MENTIONS_AT_ONCE)
        ):
            if found := event_of(rows, event_id):
                return found
            start = rows[-1][0] + 1
        return None

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """The run's row."""
        rows = await self._db.call(tenant, _RUN, (run_id,))
        return _held(rows[0]) if rows else None

    async def load(self, tenant: str, run_ids: Sequence[str], most_events: int) -> list[StoredRun]:
        """Runs of the tenant, each with up to `most_events` events, in one statement."""
        return [
            StoredRun(row=_held(tuple(row)), events=_events(types, bodies))
            for *row, types, bodies in await self._db.call(
                tenant, _LOAD, (list(run_ids), most_events)
            )
        ]

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """A page of runs, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        rows = await self._db.read(tenant, *listing(POSTGRES, tenant, where, after, limit + 1))
        return run_page(rows, limit)

    async def set_wish(self, tenant: str, run_id: str, body: bytes, now: int) -> bool:
        """Leave a wish on an unfinished run that has none, and wake it."""
        return await self._db.change(tenant, _SET_WISH, (body, now, run_id, tenant)) > 0

    async def active_runs(self, tenant: str) -> int:
        """How many runs of the tenant have not ended."""
        return int((await self._db.read(tenant, _ACTIVE_RUNS, (tenant,)))[0][0])

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """An artifact of the run, or None."""
        rows = await self._db.read(tenant, _ARTIFACT, (run_id, tenant, artifact_id))
        return artifact_row(rows[0]) if rows else None

    async def expired(self, tenant: str, run_id: str) -> bool:
        """Whether retention removed this run of the tenant."""
        return bool(await self._db.read(tenant, _EXPIRED, (tenant, run_id)))


def _events(types: list[str] | None, bodies: list[bytes]) -> list[StoredEvent]:
    """A log from its first event on; a log has no gaps."""
    return [
        StoredEvent(sequence=sequence, type=event_type, body=body)
        for sequence, (event_type, body) in enumerate(zip(types or (), bodies, strict=True))
    ]


def _held(row: Row) -> RunRow:
    """A run's row with what only processes that share it need."""
    *own, holder, wakes = row
    return replace(run_row(tuple(own)), holder=holder, wakes=wakes)
