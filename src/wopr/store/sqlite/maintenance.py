"""Maintenance on SQLite: deletion of expired runs in chunks, counters, and crashes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

import msgspec

from wopr.protocol.observed_ids import OBSERVED_PREFIX
from wopr.store.sqlite.database import run_operation
from wopr.store.sqlite.runs import SqliteTable
from wopr.store.tables.runs.deletion import expire_run
from wopr.store.tables.runs.maintenance import CLEAR_CRASHES, MaintenanceTable
from wopr.store.tables.usage import OTHER_COLUMNS, OTHER_CONTENT, other_amounts

_ENDED = f"""
SELECT tenant, run_id, ended_at, last_sequence FROM runs
WHERE ended_at < ? AND run_id NOT GLOB '{OBSERVED_PREFIX}*' ORDER BY ended_at, run_id LIMIT ?
"""
# The limits of one transaction, because live runs wait for it. A single run with a longer log is
# deleted in one transaction, because a reader must never see half a log.
_CHUNK_RUNS = 64
_CHUNK_EVENTS = 4000

_COUNT_ALL_ACTIVE = f"""
INSERT INTO active_runs (tenant, shard, runs)
SELECT tenant, 0, count(*) FROM runs INDEXED BY runs_unfinished
WHERE ended_at IS NULL AND run_id NOT GLOB '{OBSERVED_PREFIX}*' GROUP BY tenant
"""

_DELETE_COUNTS = "DELETE FROM stored_bytes"
_COUNT_RUNS = """
INSERT INTO stored_bytes (tenant, shard, event_bytes, artifact_bytes)
SELECT r.tenant, 0,
    sum((SELECT coalesce(sum(length(e.body)), 0) FROM events e WHERE e.run_id = r.run_id)),
    sum((SELECT coalesce(sum(length(a.body)), 0) FROM artifacts a WHERE a.run_id = r.run_id))
FROM runs r GROUP BY r.tenant
"""

# A second crash is counted only if no other run was being recovered at the crash.
MAX_CRASHES = 2
# Keys of the table `recovering`: the runs that are being recovered, and the runs that had a crash
# when the process started.
_RECOVERING, _SUSPECTS = 1, 2
_READ_RUNS = "SELECT runs FROM recovering WHERE place = ?"
_DELETE_RUNS = "DELETE FROM recovering WHERE place = ?"
_WRITE_RUNS = "INSERT OR REPLACE INTO recovering (place, runs) VALUES (?, ?)"
_COUNT_SUSPECT = """
UPDATE runs SET crashes = max(crashes + ?, 1)
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL AND quarantined_at IS NULL
"""
_COUNT_CRASH = """
UPDATE runs SET crashes = max(crashes + ?, 0)
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL
"""
_QUARANTINE = """
UPDATE runs INDEXED BY runs_with_crashes SET quarantined_at = ?, wake_at = NULL
WHERE crashes > 0 AND crashes >= ? AND ended_at IS NULL AND quarantined_at IS NULL
"""
_END_QUARANTINE = """
UPDATE runs SET quarantined_at = NULL, wake_at = ?
WHERE run_id = ? AND tenant = ? AND crashes < ? AND quarantined_at IS NOT NULL AND ended_at IS NULL
"""
_WITH_CRASHES = """
SELECT tenant, run_id FROM runs INDEXED BY runs_with_crashes
WHERE crashes > 0 AND ended_at IS NULL AND quarantined_at IS NULL ORDER BY tenant, run_id
"""
_runs = msgspec.json.Decoder(list[tuple[str, str]])


class SqliteMaintenance(SqliteTable, MaintenanceTable):
    """`Maintenance` and `Recovery` on SQLite."""

    max_crashes = MAX_CRASHES

    async def delete_expired_runs(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before that time, and record that they existed."""
        removed = 0
        while removed < limit:
            chunk = min(limit - removed, _CHUNK_RUNS)
            count = await self._writer.submit(
                partial(_expire, ended_before=ended_before, limit=chunk)
            )
            removed += count
            if not count:
                break
        return removed

    async def recount_usage(self) -> None:
        """Recount the stored bytes of all tenants."""
        await self._writer.submit(recount_stored_bytes)

    async def correct_counters(self) -> None:
        """Recount the active runs of every tenant."""
        await self._writer.submit(_recount_active)

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Count crashes for the runs of the last recovery, and return the runs to continue."""
        return await self._writer.submit(partial(_begin_recovery, now=now))

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Record the runs that are being recovered."""
        if runs:
            await self._change(_WRITE_RUNS, (_RECOVERING, msgspec.json.encode(runs)))
        else:
            await self._change(_DELETE_RUNS, (_RECOVERING,))

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop, or subtract it."""
        self._writer.call(
            partial(_count_freeze, tenant=tenant, run_id=run_id, change=change, now=now)
        )


def recount_stored_bytes(connection: sqlite3.Connection) -> None:
    """Count all stored bytes again, inside the caller's transaction."""
    connection.execute(_DELETE_COUNTS)
    connection.execute(_COUNT_RUNS)
    for table in OTHER_CONTENT:
        connection.execute(_count_rows(table))


def _count_rows(table: str) -> str:
    """Return the statement that counts the rows of a table and their bytes."""
    size = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for name in OTHER_CONTENT[table])
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in OTHER_COLUMNS)
    return f"""
    INSERT INTO stored_bytes (
        tenant, shard, event_bytes, artifact_bytes, {", ".join(OTHER_COLUMNS)}
    )
    SELECT tenant, 0, 0, 0, {other_amounts(table, f"sum({size})", "count(*)")}
    FROM {table} WHERE true GROUP BY tenant
    ON CONFLICT (tenant, shard) DO UPDATE SET {added}
    """


def _expire(connection: sqlite3.Connection, ended_before: int, limit: int) -> int:
    """Delete the oldest runs of one chunk, and return their number."""
    events = 0
    count = 0
    rows = connection.execute(_ENDED, (ended_before, limit)).fetchall()
    for tenant, run_id, ended_at, last_sequence in rows:
        events += last_sequence + 1
        if count and events > _CHUNK_EVENTS:
            break
        run_operation(connection, expire_run(tenant, run_id, ended_at))
        count += 1
    return count


def _recount_active(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM active_runs")
    connection.execute(_COUNT_ALL_ACTIVE)


def _begin_recovery(connection: sqlite3.Connection, now: int) -> list[tuple[str, str]]:
    recorded = _recorded_runs(connection, _RECOVERING)
    # These runs were recovered before the process died, so they did not cause the crash.
    cleared = set(_recorded_runs(connection, _SUSPECTS)).difference(recorded)
    connection.executemany(CLEAR_CRASHES, [(run_id, tenant) for tenant, run_id in cleared])
    more = 1 if len(recorded) == 1 else 0
    connection.executemany(_COUNT_SUSPECT, [(more, run_id, tenant) for tenant, run_id in recorded])
    connection.execute(_QUARANTINE, (now, MAX_CRASHES))
    suspects = [(tenant, run_id) for tenant, run_id in connection.execute(_WITH_CRASHES)]
    connection.execute(_DELETE_RUNS, (_RECOVERING,))
    if suspects:
        connection.execute(_WRITE_RUNS, (_SUSPECTS, msgspec.json.encode(suspects)))
    else:
        connection.execute(_DELETE_RUNS, (_SUSPECTS,))
    return suspects


def _recorded_runs(connection: sqlite3.Connection, place: int) -> list[tuple[str, str]]:
    row = connection.execute(_READ_RUNS, (place,)).fetchone()
    return [] if row is None else _runs.decode(row[0])


def _count_freeze(
    connection: sqlite3.Connection, tenant: str, run_id: str, change: int, now: int
) -> None:
    connection.execute(_COUNT_CRASH, (change, run_id, tenant))
    connection.execute(_QUARANTINE, (now, MAX_CRASHES))
    connection.execute(_END_QUARANTINE, (now, run_id, tenant, MAX_CRASHES))
