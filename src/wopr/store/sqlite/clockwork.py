"""The part that the host's own timers use: what is due, what to recover, what to delete."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.sqlite.deleting import delete_run
from wopr.store.sqlite.part import Part

_DUE = "SELECT tenant, run_id FROM runs WHERE wake_at <= ? ORDER BY wake_at, run_id LIMIT ?"

# From one tenant with a timer to the next one, so that it costs the tenants and not their runs.
_DUE_OF_EACH = """
WITH RECURSIVE owners (tenant) AS (
    SELECT min(tenant) FROM runs INDEXED BY runs_due_by_tenant WHERE wake_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.tenant) FROM runs r INDEXED BY runs_due_by_tenant
        WHERE r.tenant > owners.tenant AND r.wake_at IS NOT NULL
    ) FROM owners WHERE owners.tenant IS NOT NULL
)
SELECT r.tenant, r.run_id FROM owners JOIN runs r ON r.run_id IN (
    SELECT d.run_id FROM runs d INDEXED BY runs_due_by_tenant
    WHERE d.tenant = owners.tenant AND d.wake_at <= ? ORDER BY d.wake_at, d.run_id LIMIT ?
)
"""

_NEXT_DUE = "SELECT wake_at FROM runs WHERE wake_at > ? ORDER BY wake_at LIMIT 1"

_UNFINISHED = """
SELECT tenant, run_id FROM runs INDEXED BY runs_unfinished
WHERE ended_at IS NULL AND (tenant, run_id) > (?, ?)
ORDER BY tenant, run_id LIMIT ?
"""

_OPEN_COUNTS = """
SELECT status, count(*) FROM runs INDEXED BY runs_unfinished WHERE ended_at IS NULL GROUP BY status
"""

_COUNT_ALL_ACTIVE = f"""
INSERT INTO active_runs (tenant, shard, runs)
SELECT tenant, 0, count(*) FROM runs INDEXED BY runs_unfinished
WHERE ended_at IS NULL AND run_id NOT GLOB '{OBSERVED_PREFIX}*' GROUP BY tenant
"""

_WAITING_FOR_CODE = """
SELECT count(*) FROM runs INDEXED BY runs_waiting_for_code WHERE missing_types IS NOT NULL
"""

_ENDED = f"""
SELECT tenant, run_id, ended_at, last_sequence FROM runs
WHERE ended_at < ? AND run_id NOT GLOB '{OBSERVED_PREFIX}*' ORDER BY ended_at, run_id LIMIT ?
"""

_BURY = "INSERT OR REPLACE INTO expired_runs (tenant, run_id, ended_at) VALUES (?, ?, ?)"

_FORGET_ANSWERS = """
DELETE FROM answers WHERE (tenant, key_hash) IN (
    SELECT tenant, key_hash FROM answers WHERE created_at < ? ORDER BY created_at LIMIT ?
)
"""
# A run that still waits needs what it has done on record, however long ago that was.
_FORGET_INVOCATIONS = """
DELETE FROM invocations WHERE (tenant, invocation_id) IN (
    SELECT i.tenant, i.invocation_id FROM invocations i
    WHERE i.claimed_at < ? AND NOT EXISTS (
        SELECT 1 FROM runs r
        WHERE r.run_id = i.run_id AND r.tenant = i.tenant AND r.ended_at IS NULL
    ) ORDER BY i.claimed_at LIMIT ?
)
"""

# Deleting shares the writer with live runs, so no transaction deletes more than this at once. A
# single run with a longer log still goes in one piece: half a log must never be seen.
_CHUNK_RUNS = 64
_CHUNK_EVENTS = 4000
_CHUNK_RECORDS = 1000


class SqliteClockwork(Part):
    """`Clockwork` on SQLite."""

    async def due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Runs whose `wake_at` has come, earliest first."""
        return [(row[0], row[1]) for row in self._reader.near(_DUE, (now, limit))]

    async def due_of_each(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Up to `limit` due runs of each tenant."""
        return [(row[0], row[1]) for row in self._reader.near(_DUE_OF_EACH, (now, limit))]

    async def next_due(self, after: int) -> int | None:
        """The earliest `wake_at` of all unfinished runs that comes after this instant."""
        rows = self._reader.near(_NEXT_DUE, (after,))
        return rows[0][0] if rows else None

    async def unfinished(self, after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """A page of all runs that have not ended."""
        rows = await self._reader.far(_UNFINISHED, (*(after or ("", "")), limit))
        return [(row[0], row[1]) for row in rows]

    async def expire(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before then, and keep a note that they were."""
        removed = 0
        while removed < limit:
            chunk = min(limit - removed, _CHUNK_RUNS)
            count = await self._writer.submit(
                partial(_expire, ended_before=ended_before, limit=chunk)
            )
            if not count:
                break
            removed += count
        return removed

    async def forget(self, answers_before: int, invocations_before: int) -> None:
        """Drop idempotency records past their retention."""
        for sql, before in (
            (_FORGET_ANSWERS, answers_before),
            (_FORGET_INVOCATIONS, invocations_before),
        ):
            while await self._writer.submit(partial(_forget, sql=sql, before=before)):
                pass

    async def open_counts(self) -> dict[str, int]:
        """How many runs have not ended, by status."""
        return {row[0]: row[1] for row in await self._reader.far(_OPEN_COUNTS)}

    async def correct_counters(self) -> None:
        """Recount the active runs of every tenant."""
        await self._writer.submit(_recount)

    async def waiting_for_code(self) -> int:
        """How many runs wait for a process that has the code of a node."""
        return int(self._reader.near(_WAITING_FOR_CODE, ())[0][0])


def _expire(connection: sqlite3.Connection, ended_before: int, limit: int) -> int:
    """Delete the oldest few runs; answer how many."""
    events = 0
    count = 0
    rows = connection.execute(_ENDED, (ended_before, limit)).fetchall()
    for tenant, run_id, ended_at, last_sequence in rows:
        events += last_sequence + 1
        if count and events > _CHUNK_EVENTS:
            break
        connection.execute(_BURY, (tenant, run_id, ended_at))
        delete_run(connection, tenant, run_id)
        count += 1
    return count


def _recount(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM active_runs")
    connection.execute(_COUNT_ALL_ACTIVE)


def _forget(connection: sqlite3.Connection, sql: str, before: int) -> bool:
    """Delete some records; answer whether there may be more."""
    return connection.execute(sql, (before, _CHUNK_RECORDS)).rowcount == _CHUNK_RECORDS
