"""Reads of KAHN runs: lists of them, one of them, its lines, and what they add up to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from wopr.store.port.fleet import (
    AgentRun,
    AgentTotals,
    CheckpointTotals,
    FleetRun,
    Since,
    TotalsPage,
)
from wopr.store.sql.fleet_rows import AGENT_COLUMNS, RUN_COLUMNS, agent_run, fleet_run
from wopr.store.sql.fleet_totals import read_checkpoints, read_totals
from wopr.store.sql.reads import Reads

_RUN = f"SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = ? AND run_id = ?"
_NEWEST = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs
WHERE tenant = ? AND hidden_at IS NULL AND (last_event, run_id) < (?, ?)
ORDER BY last_event DESC, run_id DESC LIMIT ?
"""
_EXPIRING = """
SELECT run_id, pushed_at FROM fleet_runs
WHERE tenant = ? AND source = 'push' AND hidden_at IS NULL AND pushed_at <= ?
ORDER BY pushed_at LIMIT ?
"""
_EXPORTED = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = ? AND run_id > ? ORDER BY run_id LIMIT ?
"""
_OF_AGENT = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND last_event >= ? AND (last_event, run_id) < (?, ?)
ORDER BY last_event DESC, run_id DESC LIMIT ?
"""
_WAITING = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND blocked_at IS NOT NULL ORDER BY blocked_at, run_id, agent_id LIMIT ?
"""
_OF_RUN = f"SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?"
# From the chunk on that holds the first line asked for.
_CHUNKS = """
SELECT first, body FROM fleet_chunks
WHERE tenant = ? AND run_id = ? AND first >= coalesce(
    (SELECT max(first) FROM fleet_chunks WHERE tenant = ? AND run_id = ? AND first <= ?), 0
) ORDER BY first LIMIT ?
"""
_SIZE = "SELECT runs FROM fleet_tenants WHERE tenant = ?"

_EVER: Final = -(2**63)
_AFTER_ALL: Final = (2**63 - 1, "")
_CHUNKS_AT_ONCE: Final = 16


class FleetReads(Reads):
    """The reads of `Fleet` that every adapter makes alike."""

    async def fleet_run(self, tenant: str, run_id: str) -> FleetRun | None:
        """The run, hidden or not, or None."""
        rows = await self._read_few(tenant, _RUN, (tenant, run_id))
        return fleet_run(rows[0]) if rows else None

    async def fleet_runs(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[FleetRun]:
        """Runs, newest first, without hidden ones."""
        rows = await self._read_many(tenant, _NEWEST, (tenant, *(after or _AFTER_ALL), limit))
        return [fleet_run(row) for row in rows]

    async def fleet_exported(self, tenant: str, after: str, limit: int) -> list[FleetRun]:
        """A page of all runs, by id, hidden ones too."""
        rows = await self._read_many(tenant, _EXPORTED, (tenant, after, limit))
        return [fleet_run(row) for row in rows]

    async def fleet_agent_runs(
        self,
        tenant: str,
        agent_id: str,
        since: int | None,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[AgentRun]:
        """Runs of an agent, newest first."""
        start = _EVER if since is None else since
        rows = await self._read_many(
            tenant, _OF_AGENT, (tenant, agent_id, start, *(after or _AFTER_ALL), limit)
        )
        return [agent_run(row) for row in rows]

    async def fleet_waiting(self, tenant: str, limit: int) -> list[AgentRun]:
        """Agents that wait for an operator, who has waited longest first."""
        rows = await self._read_many(tenant, _WAITING, (tenant, limit))
        return [agent_run(row) for row in rows]

    async def fleet_run_agents(self, tenant: str, run_id: str) -> list[AgentRun]:
        """The agents of a run in the order of their start."""
        found = [agent_run(row) for row in await self._read_many(tenant, _OF_RUN, (tenant, run_id))]
        return sorted(found, key=lambda agent: (agent.started_at, agent.agent_id))

    async def fleet_lines(self, tenant: str, run_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """The lines of a run from that place on, in pieces of whole lines."""
        while chunks := await self._read_many(
            tenant, _CHUNKS, (tenant, run_id, tenant, run_id, start, _CHUNKS_AT_ONCE)
        ):
            for first, body in chunks:
                skipped = max(0, start - first)
                rest = body.split(b"\n", skipped)[-1] if skipped else body
                if rest:
                    yield rest
                start = first + body.count(b"\n")
            if len(chunks) < _CHUNKS_AT_ONCE:
                return

    async def fleet_expiring(
        self, tenant: str, pushed_before: int, limit: int
    ) -> list[tuple[str, int]]:
        """Pushed runs whose last push is not younger, the oldest first."""
        rows = await self._read_many(tenant, _EXPIRING, (tenant, pushed_before, limit))
        return [(row[0], row[1]) for row in rows]

    async def fleet_size(self, tenant: str) -> int:
        """How many KAHN runs the tenant has, without hidden ones."""
        rows = await self._read_few(tenant, _SIZE, (tenant,))
        return rows[0][0] if rows else 0

    async def fleet_totals(
        self,
        tenant: str,
        span: str,
        since: Since,
        page: TotalsPage,
        *,
        quantiles: Sequence[float],
        scores: int,
    ) -> list[AgentTotals]:
        """Totals of a page of the agents with a run in the span."""
        asking = read_totals(tenant, span, since, page, quantiles, scores)
        return await self._read_together(tenant, asking)

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since, *, limit: int, start: int = 0
    ) -> list[CheckpointTotals]:
        """Totals of a page of the checkpoints with a result in the span."""
        asking = read_checkpoints(tenant, span, since, limit, start)
        return await self._read_together(tenant, asking)
