"""The part that lists pending interrupts; `append` opens and ends them."""

from __future__ import annotations

from wopr.store.port import SuspensionFilter, SuspensionPage
from wopr.store.port.suspensions import PENDING_BYTES
from wopr.store.postgres.part import Part
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.inbox import pending_listing, pending_page
from wopr.store.sql.rows import SUSPENSION_COLUMNS

_COUNT = "SELECT count(*) FROM suspensions WHERE tenant = %s"


class PostgresSuspensions(Part):
    """`Suspensions` on PostgreSQL."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of pending interrupts, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        sql, parameters = pending_listing(POSTGRES, tenant, where, after, limit + 1)
        rows = await self._db.read(tenant, _within(sql), [*parameters, PENDING_BYTES])
        return pending_page(rows, limit)

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts are pending."""
        [(count,)] = await self._db.read(tenant, _COUNT, (tenant,))
        return int(count)


def _within(listing: str) -> str:
    """The rows of a listing up to a number of bytes."""
    # The length of a body is known without reading it.
    return f"""
SELECT {SUSPENSION_COLUMNS}
FROM (
    SELECT *, sum(length(body)) OVER newest - length(body) AS before
    FROM ({listing}) listed
    WINDOW newest AS (ORDER BY created_at DESC, place DESC)
) sized
WHERE before < %s
ORDER BY created_at DESC, place DESC
"""
