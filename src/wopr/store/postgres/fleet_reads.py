"""The part that reads KAHN runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wopr.store.postgres.part import Part
from wopr.store.sql.fleet_reads import FleetReads

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


class PostgresFleetReads(Part, FleetReads):
    """Reads of `Fleet` on PostgreSQL."""

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
