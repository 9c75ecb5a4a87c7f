"""The part that the host's own clock uses on the fleet: spans that move on, runs that are too old."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wopr.store.port.fleet import AgentRun, Since, Source
from wopr.store.postgres.asking import answered
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.deleting import delete_run
from wopr.store.postgres.fleet_counting import hold_marks, write_totals
from wopr.store.postgres.fleet_ingest import count_runs
from wopr.store.postgres.part import Part
from wopr.store.postgres.projections import put_projections
from wopr.store.sql.fleet_aging import read_hiding, read_settling
from wopr.store.sql.fleet_counting import Counting

_BEHIND = "SELECT host_fleet_behind(%s, %s)"
_HOLD_SPAN = "SELECT since FROM fleet_spans WHERE tenant = %s AND span = %s FOR UPDATE"
_MOVE = "UPDATE fleet_spans SET since = %s WHERE tenant = %s AND span = %s"

_AGED = "SELECT tenant, id, pushed_at, hidden_at FROM host_fleet_aged(%s, %s, %s)"
_HIDDEN = "SELECT tenant, id, started_at, hidden_at FROM host_fleet_hidden(%s, %s)"
_HOLD_RUN = """
SELECT hidden_at IS NOT NULL FROM fleet_runs WHERE tenant = %s AND run_id = %s FOR UPDATE
"""
_HIDE = "UPDATE fleet_runs SET hidden_at = %s WHERE tenant = %s AND run_id = %s"
_FORGET = (
    "DELETE FROM fleet_agent_runs WHERE tenant = %s AND run_id = %s",
    "DELETE FROM fleet_audits WHERE tenant = %s AND run_id = %s",
)
_DESCRIBE = """
UPDATE fleet_agent_runs SET task = %s, model = %s
WHERE tenant = %s AND run_id = %s AND agent_id = %s
"""
_DELETE = (
    "DELETE FROM fleet_runs WHERE tenant = %s AND run_id = %s",
    "DELETE FROM fleet_chunks WHERE tenant = %s AND run_id = %s",
)


class PostgresFleetClockwork(Part):
    """`FleetClockwork` on PostgreSQL."""

    async def fleet_settle(self, since: Since) -> None:
        """Take what is too old out of the totals of the rolling spans."""
        for span, start in since.items():
            while tenant := (await self._db.ask(_BEHIND, (span, start)))[0][0]:
                await self._db.run(tenant, partial(_settle, span=span, since=start))

    async def fleet_aged(
        self, source: Source, pushed_before: int, hidden_before: int, limit: int
    ) -> list[tuple[str, str, int, int | None]]:
        """Runs that were last pushed, or hidden, at or before then; the oldest first."""
        aged = await self._db.ask(_AGED, (source, pushed_before, limit))
        hidden = await self._db.ask(_HIDDEN, (hidden_before, limit))
        return [(row[0], row[1], row[2], row[3]) for row in (*aged, *hidden)]

    async def fleet_hide(self, runs: Sequence[tuple[str, str]], now: int) -> None:
        """Hide runs from everything but export, and count them no longer."""
        for tenant, run_id in runs:
            await self._db.run(tenant, partial(_hide, run_id=run_id, now=now))

    async def fleet_delete(self, runs: Sequence[tuple[str, str, str]]) -> None:
        """Delete hidden runs for good, with the run that shows them."""
        for tenant, run_id, observed_run_id in runs:
            await self._db.run(
                tenant, partial(_delete, run_id=run_id, observed_run_id=observed_run_id)
            )

    async def fleet_rebuild(
        self, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
    ) -> None:
        """Delete an observed run with its annotations, and queue it to be built from its lines."""
        await self._db.run(
            tenant, partial(_rebuild, observed_run_id=observed_run_id, agents=tuple(agents))
        )


async def _rebuild(
    transaction: Transaction, observed_run_id: str, agents: Sequence[AgentRun]
) -> None:
    for each in agents:
        values = (each.task, each.model, transaction.tenant, each.run_id, each.agent_id)
        await transaction.queue(_DESCRIBE, values)
    await delete_run(transaction, observed_run_id)
    await put_projections(transaction, [observed_run_id])


async def _settle(transaction: Transaction, span: str, since: int) -> None:
    """Move a span of the tenant a step towards its beginning, while nobody else counts in it."""
    tenant = transaction.tenant
    held = await transaction.row(_HOLD_SPAN, (tenant, span))
    if held is None or held[0] >= since:
        return
    counting = Counting({span: held[0]})
    end = await answered(transaction, read_settling(tenant, held[0], since, counting))
    await write_totals(transaction, counting)
    await transaction.queue(_MOVE, (end, tenant, span))


async def _hide(transaction: Transaction, run_id: str, now: int) -> None:
    key = (transaction.tenant, run_id)
    if await transaction.row(_HOLD_RUN, key) != (False,):
        return
    await transaction.queue(_HIDE, (now, *key))
    counting = Counting(await hold_marks(transaction))
    await answered(transaction, read_hiding(*key, counting))
    for sql in _FORGET:
        await transaction.queue(sql, key)
    await write_totals(transaction, counting)
    await count_runs(transaction, -1)


async def _delete(transaction: Transaction, run_id: str, observed_run_id: str) -> None:
    key = (transaction.tenant, run_id)
    held = await transaction.row(_HOLD_RUN, key)
    if held == (False,):
        return
    if held is not None:
        for sql in _DELETE:
            await transaction.queue(sql, key)
    await delete_run(transaction, observed_run_id)
