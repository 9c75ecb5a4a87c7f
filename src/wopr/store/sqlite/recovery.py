"""The part that counts crashes of runs: the runs that are being recovered are one row."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

import msgspec

from wopr.store.sqlite.part import Part

# A run has its second crash only when nothing else was on record at the crash.
MOST_CRASHES = 2

# The places in the table: the runs on record, and those that were suspects when the process started.
_ON_RECORD, _SUSPECTS = 1, 2
_READ = "SELECT runs FROM recovering WHERE place = ?"
_FORGET = "DELETE FROM recovering WHERE place = ?"
_KEEP = "INSERT OR REPLACE INTO recovering (place, runs) VALUES (?, ?)"
_SUSPECT = """
UPDATE runs SET crashes = max(crashes + ?, 1)
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL AND quarantined_at IS NULL
"""
_COUNT = """
UPDATE runs SET crashes = max(crashes + ?, 0)
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL
"""
_QUARANTINE = """
UPDATE runs INDEXED BY runs_with_crashes SET quarantined_at = ?, wake_at = NULL
WHERE crashes > 0 AND crashes >= ? AND ended_at IS NULL AND quarantined_at IS NULL
"""
_FREE = """
UPDATE runs SET quarantined_at = NULL, wake_at = ?
WHERE run_id = ? AND tenant = ? AND crashes < ? AND quarantined_at IS NOT NULL AND ended_at IS NULL
"""
_WITH_CRASHES = """
SELECT tenant, run_id FROM runs INDEXED BY runs_with_crashes
WHERE crashes > 0 AND ended_at IS NULL AND quarantined_at IS NULL ORDER BY tenant, run_id
"""
_CLEAR = """
UPDATE runs SET crashes = 0
WHERE run_id = ? AND tenant = ? AND crashes > 0 AND quarantined_at IS NULL
"""
_RELEASE = """
UPDATE runs SET quarantined_at = NULL, crashes = 0, wake_at = ?
WHERE run_id = ? AND tenant = ? AND quarantined_at IS NOT NULL AND ended_at IS NULL
"""
_runs = msgspec.json.Decoder(list[tuple[str, str]])


class SqliteRecovery(Part):
    """`Recovery` on SQLite."""

    most_crashes = MOST_CRASHES

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Count crashes for the runs on record; return those that have one and may go on."""
        return await self._writer.submit(partial(_begin, now=now))

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Keep the runs that are being recovered."""
        if runs:
            await self._change(_KEEP, (_ON_RECORD, msgspec.json.encode(runs)))
        else:
            await self._change(_FORGET, (_ON_RECORD,))

    async def clear_crashes(self, tenant: str, run_id: str) -> None:
        """Forget the crashes of a run that was recovered."""
        await self._change(_CLEAR, (run_id, tenant))

    async def release(self, tenant: str, run_id: str, now: int) -> bool:
        """Take a run out of quarantine and make it due."""
        return await self._change(_RELEASE, (now, run_id, tenant))

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop, or take it back."""
        self._writer.post(
            partial(_count_freeze, tenant=tenant, run_id=run_id, change=change, now=now)
        )


def _begin(connection: sqlite3.Connection, now: int) -> list[tuple[str, str]]:
    recorded = _kept(connection, _ON_RECORD)
    # The process died without them, or when it had watched them.
    cleared = set(_kept(connection, _SUSPECTS)).difference(recorded)
    connection.executemany(_CLEAR, [(run_id, tenant) for tenant, run_id in cleared])
    more = 1 if len(recorded) == 1 else 0
    connection.executemany(_SUSPECT, [(more, run_id, tenant) for tenant, run_id in recorded])
    connection.execute(_QUARANTINE, (now, MOST_CRASHES))
    suspects = [(tenant, run_id) for tenant, run_id in connection.execute(_WITH_CRASHES)]
    connection.execute(_FORGET, (_ON_RECORD,))
    if suspects:
        connection.execute(_KEEP, (_SUSPECTS, msgspec.json.encode(suspects)))
    else:
        connection.execute(_FORGET, (_SUSPECTS,))
    return suspects


def _kept(connection: sqlite3.Connection, place: int) -> list[tuple[str, str]]:
    row = connection.execute(_READ, (place,)).fetchone()
    return [] if row is None else _runs.decode(row[0])


def _count_freeze(
    connection: sqlite3.Connection, tenant: str, run_id: str, change: int, now: int
) -> None:
    connection.execute(_COUNT, (change, run_id, tenant))
    connection.execute(_QUARANTINE, (now, MOST_CRASHES))
    connection.execute(_FREE, (now, run_id, tenant, MOST_CRASHES))
