"""Work of the host across tenants: runs that are due, unfinished, expired or crashed.

On PostgreSQL functions of the host read across tenants. They return tenants and ids only, because
the service's role sees one tenant at a time.
"""

from __future__ import annotations

from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Variants

_DUE = Variants(
    sqlite="SELECT tenant, run_id FROM runs WHERE wake_at <= ? ORDER BY wake_at, run_id LIMIT ?",
    postgres="SELECT tenant, id FROM host_due(?, ?)",
)
# SQLite goes from one tenant with a timer to the next, so that the cost grows with the number of
# tenants and not of runs.
_DUE_OF_EACH = Variants(
    sqlite="""
WITH RECURSIVE known (tenant) AS (
    SELECT min(tenant) FROM runs INDEXED BY runs_due_by_tenant WHERE wake_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.tenant) FROM runs r INDEXED BY runs_due_by_tenant
        WHERE r.tenant > known.tenant AND r.wake_at IS NOT NULL
    ) FROM known WHERE known.tenant IS NOT NULL
)
SELECT r.tenant, r.run_id FROM known JOIN runs r ON r.run_id IN (
    SELECT d.run_id FROM runs d INDEXED BY runs_due_by_tenant
    WHERE d.tenant = known.tenant AND d.wake_at <= ? ORDER BY d.wake_at, d.run_id LIMIT ?
)
""",
    postgres="SELECT tenant, id FROM host_due_of_each(?, ?)",
)
_NEXT_DUE = Variants(
    sqlite="SELECT wake_at FROM runs WHERE wake_at > ? ORDER BY wake_at LIMIT 1",
    postgres="SELECT host_next_due(?)",
)
_UNFINISHED = Variants(
    sqlite="""
SELECT tenant, run_id FROM runs INDEXED BY runs_unfinished
WHERE ended_at IS NULL AND (tenant, run_id) > (?, ?)
ORDER BY tenant, run_id LIMIT ?
""",
    postgres="SELECT tenant, id FROM host_unfinished(?, ?, ?)",
)
_OPEN_COUNTS = Variants(
    sqlite="""
SELECT status, count(*) FROM runs INDEXED BY runs_unfinished WHERE ended_at IS NULL GROUP BY status
""",
    postgres="SELECT status, runs FROM host_counts()",
)
_WAITING_FOR_CODE = Variants(
    sqlite="""
SELECT count(*) FROM runs INDEXED BY runs_waiting_for_code WHERE missing_types IS NOT NULL
""",
    postgres="SELECT host_count_waiting_for_code()",
)

_DELETE_RESPONSES = Variants(
    sqlite="""
DELETE FROM answers WHERE (tenant, key_hash) IN (
    SELECT tenant, key_hash FROM answers WHERE created_at < ? ORDER BY created_at LIMIT ?
)
""",
    postgres="SELECT host_forget_answers(?, ?)",
)
# A run that has not ended still needs the records of its effects.
_DELETE_INVOCATIONS = Variants(
    sqlite="""
DELETE FROM invocations WHERE (tenant, invocation_id) IN (
    SELECT i.tenant, i.invocation_id FROM invocations i
    WHERE i.claimed_at < ? AND NOT EXISTS (
        SELECT 1 FROM runs r
        WHERE r.run_id = i.run_id AND r.tenant = i.tenant AND r.ended_at IS NULL
    ) ORDER BY i.claimed_at LIMIT ?
)
""",
    postgres="SELECT host_forget_invocations(?, ?)",
)
# The largest number of records that one transaction deletes, because others wait for it.
_CHUNK = 1000

CLEAR_CRASHES = """
UPDATE runs SET crashes = 0
WHERE run_id = ? AND tenant = ? AND crashes > 0 AND quarantined_at IS NULL
"""
_RELEASE = """
UPDATE runs SET quarantined_at = NULL, crashes = 0, wake_at = ?
WHERE run_id = ? AND tenant = ? AND quarantined_at IS NOT NULL AND ended_at IS NULL
"""


class MaintenanceTable(Table):
    """The parts of `Maintenance` and `Recovery` in SQL that both databases share."""

    async def due_runs(self, now: int, limit: int) -> list[tuple[str, str]]:
        """List runs that are due, earliest first."""
        rows = await self._sql.read_host_few(_DUE, (now, limit))
        return [(row[0], row[1]) for row in rows]

    async def due_runs_of_each_tenant(self, now: int, limit: int) -> list[tuple[str, str]]:
        """List up to `limit` due runs of each tenant that no process holds."""
        rows = await self._sql.read_host_few(_DUE_OF_EACH, (now, limit))
        return [(row[0], row[1]) for row in rows]

    async def next_due(self, after: int) -> int | None:
        """Return the earliest `wake_at` of all unfinished runs after this time."""
        rows = await self._sql.read_host_few(_NEXT_DUE, (after,))
        return None if not rows or rows[0][0] is None else int(rows[0][0])

    async def unfinished_runs(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        """List a page of all runs that have not ended."""
        rows = await self._sql.read_host_many(_UNFINISHED, (*(after or ("", "")), limit))
        return [(row[0], row[1]) for row in rows]

    async def open_run_counts(self) -> dict[str, int]:
        """Count the runs that have not ended, by status."""
        return {row[0]: row[1] for row in await self._sql.read_host_many(_OPEN_COUNTS)}

    async def waiting_for_code(self) -> int:
        """Count the runs that wait for a process with the code of a node."""
        [(count,)] = await self._sql.read_host_few(_WAITING_FOR_CODE)
        return int(count)

    async def delete_idempotency_records(
        self, records_before: int, invocations_before: int
    ) -> None:
        """Delete idempotency records past their retention."""
        for sql, before in (
            (_DELETE_RESPONSES, records_before),
            (_DELETE_INVOCATIONS, invocations_before),
        ):
            while await self._sql.change_host(sql, (before, _CHUNK)) == _CHUNK:
                pass

    async def clear_crashes(self, tenant: str, run_id: str) -> None:
        """Set the crashes of a run that was recovered to zero."""
        await self._sql.change(tenant, CLEAR_CRASHES, (run_id, tenant))

    async def release_from_quarantine(self, tenant: str, run_id: str, now: int) -> bool:
        """Take a run out of quarantine and make it due."""
        return await self._sql.change(tenant, _RELEASE, (now, run_id, tenant)) > 0
