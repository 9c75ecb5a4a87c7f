"""The part that the host's own clock uses on the fleet: spans that move on, runs that are too old."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from wopr.store.port.fleet import AgentRun, Since, Source
from wopr.store.sql.fleet_aging import read_hiding, read_settling
from wopr.store.sql.fleet_counting import Counting
from wopr.store.sqlite.asking import answered
from wopr.store.sqlite.deleting import delete_run
from wopr.store.sqlite.fleet_counting import marks, write_totals
from wopr.store.sqlite.fleet_ingest import count_runs
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.projections import put_projections

_BEHIND = """
SELECT tenant, since FROM fleet_spans WHERE span = ? AND since < ? ORDER BY since LIMIT 1
"""
_MOVE = "UPDATE fleet_spans SET since = ? WHERE tenant = ? AND span = ?"

_AGED = """
SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
WHERE hidden_at IS NULL AND source = ? AND pushed_at <= ? ORDER BY pushed_at LIMIT ?
"""
_HIDDEN = """
SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
WHERE hidden_at <= ? ORDER BY hidden_at LIMIT ?
"""
_HIDE = """
UPDATE fleet_runs SET hidden_at = ? WHERE tenant = ? AND run_id = ? AND hidden_at IS NULL
"""
_FORGET = (
    "DELETE FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?",
    "DELETE FROM fleet_audits WHERE tenant = ? AND run_id = ?",
)
_DELETE_RUN = """
DELETE FROM fleet_runs WHERE tenant = ? AND run_id = ? AND hidden_at IS NOT NULL
"""
_IS_SHOWN = "SELECT 1 FROM fleet_runs WHERE tenant = ? AND run_id = ?"
_DESCRIBE = """
UPDATE fleet_agent_runs SET task = ?, model = ? WHERE tenant = ? AND run_id = ? AND agent_id = ?
"""
_DELETE_CHUNKS = "DELETE FROM fleet_chunks WHERE tenant = ? AND run_id = ?"


class SqliteFleetClockwork(Part):
    """`FleetClockwork` on SQLite."""

    async def fleet_settle(self, since: Since) -> None:
        """Take what is too old out of the totals of the rolling spans."""
        for span, start in since.items():
            while await self._writer.submit(partial(_settle, span=span, since=start)):
                pass

    async def fleet_aged(
        self, source: Source, pushed_before: int, hidden_before: int, limit: int
    ) -> list[tuple[str, str, int, int | None]]:
        """Runs that were last pushed, or hidden, at or before then; the oldest first."""
        aged = await self._reader.far(_AGED, (source, pushed_before, limit))
        hidden = await self._reader.far(_HIDDEN, (hidden_before, limit))
        return [(row[0], row[1], row[2], row[3]) for row in (*aged, *hidden)]

    async def fleet_hide(self, runs: Sequence[tuple[str, str]], now: int) -> None:
        """Hide runs from everything but export, and count them no longer."""
        for tenant, run_id in runs:
            await self._writer.submit(partial(_hide, tenant=tenant, run_id=run_id, now=now))

    async def fleet_delete(self, runs: Sequence[tuple[str, str, str]]) -> None:
        """Delete hidden runs for good, with the runs that show them."""
        for tenant, run_id, observed_run_id in runs:
            await self._writer.submit(
                partial(_delete, tenant=tenant, run_id=run_id, observed_run_id=observed_run_id)
            )

    async def fleet_rebuild(
        self, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
    ) -> None:
        """Delete an observed run with its annotations, and queue it to be built from its lines."""
        await self._writer.submit(
            partial(_rebuild, tenant=tenant, observed_run_id=observed_run_id, agents=tuple(agents))
        )


def _rebuild(
    connection: sqlite3.Connection, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
) -> None:
    for each in agents:
        values = (each.task, each.model, tenant, each.run_id, each.agent_id)
        connection.execute(_DESCRIBE, values)
    delete_run(connection, tenant, observed_run_id)
    put_projections(connection, tenant, [observed_run_id])


def _settle(connection: sqlite3.Connection, span: str, since: int) -> bool:
    """Move one tenant's span a step towards its beginning; False when none is behind."""
    behind = connection.execute(_BEHIND, (span, since)).fetchone()
    if behind is None:
        return False
    tenant, mark = behind
    counting = Counting({span: mark})
    end = answered(connection, read_settling(tenant, mark, since, counting))
    write_totals(connection, tenant, counting)
    connection.execute(_MOVE, (end, tenant, span))
    return True


def _hide(connection: sqlite3.Connection, tenant: str, run_id: str, now: int) -> None:
    if not connection.execute(_HIDE, (now, tenant, run_id)).rowcount:
        return
    counting = Counting(marks(connection, tenant))
    answered(connection, read_hiding(tenant, run_id, counting))
    for sql in _FORGET:
        connection.execute(sql, (tenant, run_id))
    write_totals(connection, tenant, counting)
    count_runs(connection, tenant, -1)


def _delete(connection: sqlite3.Connection, tenant: str, run_id: str, observed_run_id: str) -> None:
    if connection.execute(_DELETE_RUN, (tenant, run_id)).rowcount:
        connection.execute(_DELETE_CHUNKS, (tenant, run_id))
    elif connection.execute(_IS_SHOWN, (tenant, run_id)).fetchone():
        return
    delete_run(connection, tenant, observed_run_id)
