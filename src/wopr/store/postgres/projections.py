"""The part that keeps which runs the fleet has not been told of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wopr.store.port.projections import Unprojected
from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.dialect import Row

_PUT = "SELECT put_projections(%s, %s::text[])"
_WAITING = "SELECT place, tenant, id FROM host_unprojected(%s, %s, %s)"
# The condition is as the index has it, letter by letter.
_WAITING_OF = f"""
SELECT place, tenant, run_id FROM projections
WHERE starts_with(run_id, '{OBSERVED_PREFIX}') AND tenant = %s AND place > %s
ORDER BY place LIMIT %s
"""
_WAITS = "SELECT 1 FROM projections WHERE tenant = %s AND run_id = %s"
_DONE = "SELECT host_projected(%s::bigint[], %s::text[])"


class PostgresProjections(Part):
    """`Projections` on PostgreSQL."""

    async def unprojected(
        self, after: int, limit: int, *, observed: bool = False
    ) -> list[Unprojected]:
        """Own or observed runs behind that place, longest waiting first."""
        return _entries(await self._db.ask(_WAITING, (observed, after, limit)))

    async def unprojected_of(self, tenant: str, after: int, limit: int) -> list[Unprojected]:
        """Observed runs of one tenant behind that place, longest waiting first."""
        return _entries(await self._db.read(tenant, _WAITING_OF, (tenant, after, limit)))

    async def is_unprojected(self, tenant: str, run_id: str) -> bool:
        """Whether this run of the tenant waits in a queue."""
        return bool(await self._db.read(tenant, _WAITS, (tenant, run_id)))

    async def projected(self, done: Sequence[Unprojected]) -> None:
        """Take these out; one that has had news since keeps its new place."""
        if done:
            places, tenants = [each.place for each in done], [each.tenant for each in done]
            await self._db.tell(_DONE, (places, tenants))


def _entries(rows: Iterable[Row]) -> list[Unprojected]:
    return [Unprojected(place=row[0], tenant=row[1], run_id=row[2]) for row in rows]


async def put_projections(transaction: Transaction, run_ids: Sequence[str]) -> None:
    """Note that runs have news, behind all others."""
    await transaction.queue(_PUT, (transaction.tenant, list(run_ids)))
