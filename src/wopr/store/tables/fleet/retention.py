"""Retention of KAHN runs: moves the rolling spans forward, and hides and deletes runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from wopr.store.port.fleet import AgentRun, FleetRunSource, Since
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Row, Variants, variants
from wopr.store.tables.fleet.counters import TotalsChange, lock_span_starts, write_totals
from wopr.store.tables.fleet.projections import enqueue_projections
from wopr.store.tables.fleet.runs import (
    AGENT_COLUMNS,
    AUDIT_COLUMNS,
    agent_run,
    audit_row,
    count_runs,
)
from wopr.store.tables.runs.deletion import delete_run
from wopr.store.tables.statements import Operation, execute, execute_many, query

_BEHIND: Final = Variants(
    sqlite="SELECT tenant FROM fleet_spans WHERE span = ? AND since < ? ORDER BY since LIMIT 1",
    postgres="SELECT host_fleet_behind(?, ?)",
)
_LOCK_SPAN: Final = variants(
    lambda dialect: (
        f"SELECT since FROM fleet_spans WHERE tenant = ? AND span = ?{dialect.lock('FOR UPDATE')}"
    )
)
_MOVE_SPAN: Final = "UPDATE fleet_spans SET since = ? WHERE tenant = ? AND span = ?"
_AGENTS_BETWEEN: Final = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ?
"""
_AUDITS_BETWEEN: Final = f"""
SELECT {AUDIT_COLUMNS} FROM fleet_audits WHERE tenant = ? AND at >= ? AND at < ?
"""
_NEXT_AGENT: Final = """
SELECT last_event FROM fleet_agent_runs WHERE tenant = ? AND last_event >= ?
ORDER BY last_event LIMIT 1
"""
_NEXT_AUDIT: Final = "SELECT at FROM fleet_audits WHERE tenant = ? AND at >= ? ORDER BY at LIMIT 1"
_AGENTS_OF_RUN: Final = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?
"""
_AUDITS_OF_RUN: Final = f"""
SELECT {AUDIT_COLUMNS} FROM fleet_audits WHERE tenant = ? AND run_id = ?
"""

# The longest step of a span, so that no transaction takes long when a span is far behind.
_STEP_MS: Final = 3_600_000

_AGED: Final = Variants(
    sqlite="""
SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
WHERE hidden_at IS NULL AND source = ? AND pushed_at <= ? ORDER BY pushed_at LIMIT ?
""",
    postgres="SELECT tenant, id, pushed_at, hidden_at FROM host_fleet_aged(?, ?, ?)",
)
# `pushed_at` matters only for runs that are not hidden. For hidden runs the function of PostgreSQL
# returns their start in its place.
_HIDDEN: Final = Variants(
    sqlite="""
SELECT tenant, run_id, pushed_at, hidden_at FROM fleet_runs
WHERE hidden_at <= ? ORDER BY hidden_at LIMIT ?
""",
    postgres="SELECT tenant, id, started_at, hidden_at FROM host_fleet_hidden(?, ?)",
)
_HIDE: Final = """
UPDATE fleet_runs SET hidden_at = ?
WHERE tenant = ? AND run_id = ? AND hidden_at IS NULL RETURNING 1
"""
_DELETE_AGENTS: Final = "DELETE FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?"
_DELETE_AUDITS: Final = "DELETE FROM fleet_audits WHERE tenant = ? AND run_id = ?"
_DELETE_RUN: Final = """
DELETE FROM fleet_runs WHERE tenant = ? AND run_id = ? AND hidden_at IS NOT NULL RETURNING 1
"""
_DELETE_CHUNKS: Final = "DELETE FROM fleet_chunks WHERE tenant = ? AND run_id = ?"
_EXISTS: Final = "SELECT 1 FROM fleet_runs WHERE tenant = ? AND run_id = ?"
_SET_DESCRIPTION: Final = """
UPDATE fleet_agent_runs SET task = ?, model = ? WHERE tenant = ? AND run_id = ? AND agent_id = ?
"""


class FleetRetentionTable(Table):
    """`FleetMaintenance` in SQL."""

    async def fleet_advance_spans(self, since: Since) -> None:
        """Move the rolling spans forward, and subtract the runs that leave a span."""
        for span, start in since.items():
            while tenant := await self._behind(span, start):
                await self._sql.transact(tenant, partial(_advance_span, tenant, span, start))

    async def fleet_expired_runs(
        self, source: FleetRunSource, pushed_before: int, hidden_before: int, limit: int
    ) -> list[tuple[str, str, int, int | None]]:
        """List runs whose retention has ended, the oldest first."""
        aged = await self._sql.read_host_many(_AGED, (source, pushed_before, limit))
        hidden = await self._sql.read_host_many(_HIDDEN, (hidden_before, limit))
        return [(row[0], row[1], row[2], row[3]) for row in (*aged, *hidden)]

    async def fleet_hide(self, runs: Sequence[tuple[str, str]], now: int) -> None:
        """Hide runs everywhere except in exports, and subtract them from the totals."""
        for tenant, run_id in runs:
            await self._sql.transact(tenant, partial(_hide, tenant, run_id, now))

    async def fleet_delete(self, runs: Sequence[tuple[str, str, str]]) -> None:
        """Delete hidden runs, with their observed runs."""
        for tenant, run_id, observed_run_id in runs:
            await self._sql.transact(tenant, partial(_delete, tenant, run_id, observed_run_id))

    async def fleet_rebuild(
        self, tenant: str, observed_run_id: str, agents: Sequence[AgentRun]
    ) -> None:
        """Delete an observed run with its annotations, and queue it to be built from its lines."""
        await self._sql.transact(tenant, partial(_rebuild, tenant, observed_run_id, agents))

    async def _behind(self, span: str, since: int) -> str | None:
        """Return a tenant whose span begins too early."""
        rows = await self._sql.read_host_few(_BEHIND, (span, since))
        return rows[0][0] if rows else None


def _advance_span(tenant: str, span: str, since: int) -> Operation[None]:
    """Move the stored start of a span one step towards `since`."""
    found = yield query(_LOCK_SPAN, (tenant, span))
    if not found or found[0][0] >= since:
        return
    stored_start = found[0][0]
    agents = yield query(_NEXT_AGENT, (tenant, stored_start))
    audits = yield query(_NEXT_AUDIT, (tenant, stored_start))
    # The step begins at the next run or audit that leaves the span.
    first = min((row[0] for row in (*agents, *audits)), default=since)
    end = min(since, first + _STEP_MS)
    change = TotalsChange({span: stored_start})
    _subtract(
        change,
        (yield query(_AGENTS_BETWEEN, (tenant, stored_start, end))),
        (yield query(_AUDITS_BETWEEN, (tenant, stored_start, end))),
    )
    yield from write_totals(tenant, change)
    yield execute(_MOVE_SPAN, (end, tenant, span))


def _hide(tenant: str, run_id: str, now: int) -> Operation[None]:
    key = (tenant, run_id)
    if not (yield query(_HIDE, (now, *key))):
        return
    change = TotalsChange((yield from lock_span_starts(tenant)))
    _subtract(change, (yield query(_AGENTS_OF_RUN, key)), (yield query(_AUDITS_OF_RUN, key)))
    yield execute(_DELETE_AGENTS, key)
    yield execute(_DELETE_AUDITS, key)
    yield from write_totals(tenant, change)
    yield from count_runs(tenant, -1)


def _delete(tenant: str, run_id: str, observed_run_id: str) -> Operation[None]:
    key = (tenant, run_id)
    if (yield query(_DELETE_RUN, key)):
        yield execute(_DELETE_CHUNKS, key)
    elif (yield query(_EXISTS, key)):
        return
    yield from delete_run(tenant, observed_run_id)


def _rebuild(tenant: str, observed_run_id: str, agents: Sequence[AgentRun]) -> Operation[None]:
    yield execute_many(
        _SET_DESCRIPTION,
        [(each.task, each.model, tenant, each.run_id, each.agent_id) for each in agents],
    )
    yield from delete_run(tenant, observed_run_id)
    yield from enqueue_projections(tenant, [observed_run_id])


def _subtract(change: TotalsChange, agents: list[Row], audits: list[Row]) -> None:
    for row in agents:
        change.add_agent(agent_run(row), -1)
    for row in audits:
        change.add_audit(audit_row(row), -1)
