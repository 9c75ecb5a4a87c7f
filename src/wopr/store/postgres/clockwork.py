"""The part that the host's own timers use: what is due, what to recover, what to delete.

What crosses tenants are functions that answer with owners and ids; what is then deleted is deleted
as its tenant.
"""

from __future__ import annotations

from functools import partial

from wopr.store.postgres.database import Transaction
from wopr.store.postgres.deleting import delete_run
from wopr.store.postgres.part import Part

_DUE = "SELECT tenant, id FROM host_due(%s, %s)"
_DUE_OF_EACH = "SELECT tenant, id FROM host_due_of_each(%s, %s)"
_NEXT_DUE = "SELECT host_next_due(%s)"
_UNFINISHED = "SELECT tenant, id FROM host_unfinished(%s, %s, %s)"
_OPEN_COUNTS = "SELECT status, runs FROM host_counts()"
_CORRECT = (
    "SELECT host_add_up_active_runs()",
    "SELECT host_recount_active_runs()",
    "SELECT host_add_up_stored_bytes()",
)
_WAITING_FOR_CODE = "SELECT host_count_waiting_for_code()"
_EXPIRABLE = "SELECT tenant, id FROM host_expirable(%s, %s)"
_FORGET = ("SELECT host_forget_answers(%s, %s)", "SELECT host_forget_invocations(%s, %s)")

# Held until it is gone, so that no two processes delete the same run.
_HOLD = """
SELECT ended_at FROM runs WHERE run_id = %s AND tenant = %s AND ended_at < %s FOR UPDATE
"""
_BURY = """
INSERT INTO expired_runs (tenant, run_id, ended_at) VALUES (%s, %s, %s)
ON CONFLICT (tenant, run_id) DO UPDATE SET ended_at = excluded.ended_at
"""

# A run goes in one piece and in a transaction of its own: half a log must never be seen, and no
# transaction holds more than it must.
_CHUNK_RUNS = 64
_CHUNK_RECORDS = 1000


class PostgresClockwork(Part):
    """`Clockwork` on PostgreSQL."""

    async def due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Runs whose `wake_at` has come, earliest first."""
        return [(row[0], row[1]) for row in await self._db.ask(_DUE, (now, limit))]

    async def due_of_each(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Up to `limit` due runs of each tenant that no process holds."""
        return [(row[0], row[1]) for row in await self._db.ask(_DUE_OF_EACH, (now, limit))]

    async def next_due(self, after: int) -> int | None:
        """The earliest `wake_at` of all unfinished runs that comes after this instant."""
        [(wake_at,)] = await self._db.ask(_NEXT_DUE, (after,))
        return None if wake_at is None else int(wake_at)

    async def unfinished(self, after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """A page of all runs that have not ended."""
        rows = await self._db.ask(_UNFINISHED, (*(after or ("", "")), limit))
        return [(row[0], row[1]) for row in rows]

    async def expire(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before then, and keep a note that they were."""
        removed = 0
        while removed < limit:
            chunk = min(limit - removed, _CHUNK_RUNS)
            rows = await self._db.ask(_EXPIRABLE, (ended_before, chunk))
            for tenant, run_id in rows:
                removed += await self._db.run(
                    tenant, partial(_expire, run_id=run_id, ended_before=ended_before)
                )
            if len(rows) < chunk:
                break
        return removed

    async def forget(self, answers_before: int, invocations_before: int) -> None:
        """Drop idempotency records past their retention."""
        for sql, before in zip(_FORGET, (answers_before, invocations_before), strict=True):
            while True:
                [(count,)] = await self._db.tell(sql, (before, _CHUNK_RECORDS))
                if count < _CHUNK_RECORDS:
                    break

    async def open_counts(self) -> dict[str, int]:
        """How many runs have not ended, by status."""
        return {row[0]: row[1] for row in await self._db.ask(_OPEN_COUNTS)}

    async def correct_counters(self) -> None:
        """Merge the rows of each counter, and correct the number of active runs."""
        for sql in _CORRECT:
            await self._db.tell(sql, ())

    async def waiting_for_code(self) -> int:
        """How many runs wait for a process that has the code of a node."""
        [(count,)] = await self._db.ask(_WAITING_FOR_CODE)
        return int(count)


async def _expire(transaction: Transaction, run_id: str, ended_before: int) -> int:
    """Delete one run; 0 when another process was faster."""
    tenant = transaction.tenant
    held = await transaction.row(_HOLD, (run_id, tenant, ended_before))
    if held is None:
        return 0
    await transaction.queue(_BURY, (tenant, run_id, held[0]))
    await delete_run(transaction, run_id)
    return 1
