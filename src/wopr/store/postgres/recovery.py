"""The part that counts crashes of runs; the runs of a dead process are counted where they are freed."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from wopr.store.postgres.faults import translated
from wopr.store.postgres.part import Part
from wopr.store.postgres.schema_recovery import MOST_CRASHES

_CLEAR = """
UPDATE runs SET crashes = 0
WHERE run_id = %s AND tenant = %s AND crashes > 0 AND quarantined_at IS NULL
"""
_RELEASE = """
UPDATE runs SET quarantined_at = NULL, crashes = 0, wake_at = %s
WHERE run_id = %s AND tenant = %s AND quarantined_at IS NOT NULL AND ended_at IS NULL
"""
_COUNT_FREEZE = "SELECT host_count_freeze(%s, %s, %s, %s)"
_SET_TOKEN = "SELECT set_config('wopr.token', %s, false)"
_CONNECT_SECONDS = 5


class PostgresRecovery(Part):
    """`Recovery` on PostgreSQL."""

    most_crashes = MOST_CRASHES

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Do nothing: `Peers.rescue` counts the crashes of a dead process."""
        return []

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Do nothing: a run that a process executes has the name of the process in its row."""

    async def clear_crashes(self, tenant: str, run_id: str) -> None:
        """Forget the crashes of a run that was recovered."""
        await self._db.change(tenant, _CLEAR, (run_id, tenant))

    async def release(self, tenant: str, run_id: str, now: int) -> bool:
        """Take a run out of quarantine and make it due."""
        return await self._db.change(tenant, _RELEASE, (now, run_id, tenant)) > 0

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop, or take it back."""
        try:
            with psycopg.connect(
                self._db.address.connecting("search_path=wopr"),
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
            ) as connection:
                token = self._db.host_token(connection.info.backend_pid)
                connection.execute(_SET_TOKEN, (token,))
                connection.execute(_COUNT_FREEZE, (tenant, run_id, change, now))
        except psycopg.Error as error:
            raise translated(error) from error
