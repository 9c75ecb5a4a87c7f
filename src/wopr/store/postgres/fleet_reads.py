"""The part that reads KAHN runs: lists of them, one of them, its lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from wopr.store.port.fleet import AgentRun, FleetRun
from wopr.store.postgres.part import Part
from wopr.store.sql.fleet_rows import AGENT_COLUMNS, RUN_COLUMNS, agent_run, fleet_run

_RUN = f"SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = %s AND run_id = %s"
_NEWEST = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs
WHERE tenant = %s AND hidden_at IS NULL AND (last_event, run_id) < (%s, %s)
ORDER BY last_event DESC, run_id DESC LIMIT %s
"""
_EXPORTED = f"""
SELECT {RUN_COLUMNS} FROM fleet_runs WHERE tenant = %s AND run_id > %s ORDER BY run_id LIMIT %s
"""
_OF_AGENT = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = %s AND agent_id = %s AND last_event >= %s AND (last_event, run_id) < (%s, %s)
ORDER BY last_event DESC, run_id DESC LIMIT %s
"""
_WAITING = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = %s AND blocked_at IS NOT NULL ORDER BY blocked_at, run_id, agent_id LIMIT %s
"""
_OF_RUN = f"SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = %s AND run_id = %s"
# From the chunk on that holds the first line asked for.
_CHUNKS = """
SELECT first, body FROM fleet_chunks
WHERE tenant = %s AND run_id = %s AND first >= coalesce(
    (SELECT max(first) FROM fleet_chunks WHERE tenant = %s AND run_id = %s AND first <= %s), 0
) ORDER BY first LIMIT %s
"""
# So many bytes in all, and one push more.
_PUSHED = """
SELECT run_id, body FROM (
    SELECT c.run_id, c.first, c.body, known.place,
           sum(length(c.body)) OVER (ORDER BY known.place, c.first) - length(c.body) AS before
    FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS known (run_id, start, place)
    JOIN fleet_chunks c ON c.tenant = %s AND c.run_id = known.run_id AND c.first >= known.start
) AS pushed WHERE before < %s ORDER BY place, first
"""
_NAMESAKES = "SELECT run_id FROM runs WHERE tenant = %s AND run_id = ANY (%s::text[])"
_SIZE = "SELECT runs FROM fleet_tenants WHERE tenant = %s"

_EVER: Final = -(2**63)
_AFTER_ALL: Final = (2**63 - 1, "")
_CHUNKS_AT_ONCE: Final = 16


class PostgresFleetReads(Part):
    """Reads of `Fleet` on PostgreSQL."""

    async def fleet_run(self, tenant: str, run_id: str) -> FleetRun | None:
        """The run, hidden or not, or None."""
        rows = await self._db.read(tenant, _RUN, (tenant, run_id))
        return fleet_run(rows[0]) if rows else None

    async def fleet_runs(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[FleetRun]:
        """Runs, newest first, without hidden ones."""
        rows = await self._db.read(tenant, _NEWEST, (tenant, *(after or _AFTER_ALL), limit))
        return [fleet_run(row) for row in rows]

    async def fleet_exported(self, tenant: str, after: str, limit: int) -> list[FleetRun]:
        """A page of all runs, by id, hidden ones too."""
        rows = await self._db.read(tenant, _EXPORTED, (tenant, after, limit))
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
        rows = await self._db.read(
            tenant, _OF_AGENT, (tenant, agent_id, start, *(after or _AFTER_ALL), limit)
        )
        return [agent_run(row) for row in rows]

    async def fleet_waiting(self, tenant: str, limit: int) -> list[AgentRun]:
        """Agents that wait for an operator, who has waited longest first."""
        rows = await self._db.read(tenant, _WAITING, (tenant, limit))
        return [agent_run(row) for row in rows]

    async def fleet_run_agents(self, tenant: str, run_id: str) -> list[AgentRun]:
        """The agents of a run in the order of their start."""
        found = [agent_run(row) for row in await self._db.read(tenant, _OF_RUN, (tenant, run_id))]
        return sorted(found, key=lambda agent: (agent.started_at, agent.agent_id))

    async def fleet_lines(self, tenant: str, run_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """The lines of a run from that place on, in pieces of whole lines."""
        while chunks := await self._db.read(
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

    async def fleet_news(
        self, tenant: str, starts: Mapping[str, int], most_bytes: int
    ) -> dict[str, list[bytes]]:
        """What was pushed of each of these runs from a place on, where a push begins."""
        known = (list(starts), list(starts.values()))
        found: dict[str, list[bytes]] = {}
        for run_id, body in await self._db.read(tenant, _PUSHED, (*known, tenant, most_bytes)):
            found.setdefault(run_id, []).append(body)
        return found

    async def fleet_namesakes(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        """Those of these ids that a run of the tenant on this host has."""
        rows = await self._db.read(tenant, _NAMESAKES, (tenant, list(run_ids)))
        return {row[0] for row in rows}

    async def fleet_size(self, tenant: str) -> int:
        """How many KAHN runs the tenant has, without hidden ones."""
        rows = await self._db.read(tenant, _SIZE, (tenant,))
        return rows[0][0] if rows else 0
