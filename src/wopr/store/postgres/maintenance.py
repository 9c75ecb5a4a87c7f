"""Maintenance on PostgreSQL: deletion of expired runs, counters, and crashes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import psycopg

from wopr.store.postgres.database import Transaction
from wopr.store.postgres.faults import translate_error
from wopr.store.postgres.runs import PostgresTable
from wopr.store.postgres.schema_constants import MAX_CRASHES
from wopr.store.tables.runs.deletion import expire_run
from wopr.store.tables.runs.maintenance import MaintenanceTable

_EXPIRABLE = "SELECT tenant, id FROM host_expirable(%s, %s)"
# Locked until the run is deleted, so that no two processes delete the same run.
_LOCK = """
SELECT ended_at FROM runs WHERE run_id = %s AND tenant = %s AND ended_at < %s FOR UPDATE
"""
_CHUNK_RUNS = 64

_CORRECT = (
    "SELECT host_add_up_active_runs()",
    "SELECT host_recount_active_runs()",
    "SELECT host_add_up_stored_bytes()",
)
_RECOUNT = ("SELECT host_add_up_stored_bytes()", "SELECT host_recount_stored_bytes()")

_COUNT_FREEZE = "SELECT host_count_freeze(%s, %s, %s, %s)"
_SET_TOKEN = "SELECT set_config('wopr.token', %s, false)"
_CONNECT_SECONDS = 5


class PostgresMaintenance(PostgresTable, MaintenanceTable):
    """`Maintenance` and `Recovery` on PostgreSQL."""

    max_crashes = MAX_CRASHES

    async def delete_expired_runs(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before that time, and record that they existed.

        Each run has its own transaction, so that a reader never sees half a log and locks are
        short.
        """
        removed = 0
        while removed < limit:
            chunk = min(limit - removed, _CHUNK_RUNS)
            rows = await self._db.read_host(_EXPIRABLE, (ended_before, chunk))
            for tenant, run_id in rows:
                removed += await self._db.run(
                    tenant, partial(_expire, run_id=run_id, ended_before=ended_before)
                )
            if len(rows) < chunk:
                break
        return removed

    async def recount_usage(self) -> None:
        """Recount the stored bytes of all tenants."""
        for sql in _RECOUNT:
            await self._db.write_host(sql)

    async def correct_counters(self) -> None:
        """Merge the rows of each counter, and correct the number of active runs."""
        for sql in _CORRECT:
            await self._db.write_host(sql)

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        """Do nothing: `Peers.rescue` counts the crashes of a dead process."""
        return []

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        """Do nothing: the row of a run has the name of the process that executes it."""

    def count_freeze(self, tenant: str, run_id: str, change: int, now: int) -> None:
        """Count a crash for a run that blocks the event loop, or subtract it."""
        try:
            with psycopg.connect(
                self._db.address.conninfo_with("search_path=wopr"),
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
            ) as connection:
                token = self._db.host_token(connection.info.backend_pid)
                connection.execute(_SET_TOKEN, (token,))
                connection.execute(_COUNT_FREEZE, (tenant, run_id, change, now))
        except psycopg.Error as error:
            raise translate_error(error) from error


async def _expire(transaction: Transaction, run_id: str, ended_before: int) -> int:
    """Delete one run and return 1, or 0 if another process has deleted it."""
    tenant = transaction.tenant
    locked = await transaction.row(_LOCK, (run_id, tenant, ended_before))
    if locked is None:
        return 0
    await transaction.run(expire_run(tenant, run_id, locked[0]))
    return 1
