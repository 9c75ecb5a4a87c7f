"""The projection queue: runs with events or lines that are not projected yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wopr.protocol.observed_ids import OBSERVED_PREFIX
from wopr.store.port.fleet import QueuedProjection
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import SQLITE, Row, Variants
from wopr.store.tables.statements import Operation, execute_bulk

# A run that is already in the queue moves to its end. The function locks in the order of ids.
_ENQUEUE = Variants(
    sqlite="INSERT OR REPLACE INTO projections (tenant, run_id) VALUES (?, ?)",
    postgres="SELECT put_projections((?::text[])[1], ?::text[])",
)
# The conditions have the same text as in the indexes: a database uses the index only then.
_WAITING = Variants(
    sqlite=f"""
SELECT place, tenant, run_id FROM projections
WHERE run_id GLOB '{OBSERVED_PREFIX}*' = ? AND place > ? ORDER BY place LIMIT ?
""",
    postgres="SELECT place, tenant, id FROM host_unprojected(?, ?, ?)",
)
_WAITING_OF_TENANT = Variants(
    sqlite=f"""
SELECT place, tenant, run_id FROM projections
WHERE run_id GLOB '{OBSERVED_PREFIX}*' AND tenant = ? AND place > ? ORDER BY place LIMIT ?
""",
    postgres=f"""
SELECT place, tenant, run_id FROM projections
WHERE starts_with(run_id, '{OBSERVED_PREFIX}') AND tenant = ? AND place > ?
ORDER BY place LIMIT ?
""",
)
_IS_WAITING = "SELECT 1 FROM projections WHERE tenant = ? AND run_id = ?"
_DELETE = Variants(
    sqlite=f"""
DELETE FROM projections
WHERE {SQLITE.in_array("place", "bigint")} AND {SQLITE.in_array("tenant", "text")}
""",
    postgres="SELECT host_projected(?::bigint[], ?::text[])",
)


class ProjectionTable(Table):
    """`Projections` in SQL."""

    async def queued_projections(
        self, after: int, limit: int, *, observed: bool = False
    ) -> list[QueuedProjection]:
        """Return own or observed runs after that place, in the order of the queue."""
        return _entries(await self._sql.read_host_few(_WAITING, (observed, after, limit)))

    async def queued_projections_of_tenant(
        self, tenant: str, after: int, limit: int
    ) -> list[QueuedProjection]:
        """Return observed runs of one tenant after that place, in the order of the queue."""
        values = (tenant, after, limit)
        return _entries(await self._sql.read_few(tenant, _WAITING_OF_TENANT, values))

    async def is_projection_queued(self, tenant: str, run_id: str) -> bool:
        """Return whether this run of the tenant is in a queue."""
        return bool(await self._sql.read_few(tenant, _IS_WAITING, (tenant, run_id)))

    async def remove_projections(self, done: Sequence[QueuedProjection]) -> None:
        """Remove these entries. A run that was queued again since keeps its new place."""
        if done:
            array = self._sql.dialect.array
            places, tenants = (each.place for each in done), (each.tenant for each in done)
            await self._sql.change_host(_DELETE, (array(places), array(tenants)))


def enqueue_projections(tenant: str, run_ids: Iterable[str]) -> Operation[None]:
    """Add runs at the end of the queue."""
    yield execute_bulk(_ENQUEUE, [(tenant, run_id) for run_id in run_ids])


def _entries(rows: Iterable[Row]) -> list[QueuedProjection]:
    return [QueuedProjection(place=row[0], tenant=row[1], run_id=row[2]) for row in rows]
