"""The part that lists pending interrupts; `append` opens and ends them."""

from __future__ import annotations

from wopr.store.port import SuspensionFilter, SuspensionPage
from wopr.store.postgres.part import Part
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.inbox import pending_listing, pending_page

_COUNT = "SELECT count(*) FROM suspensions WHERE tenant = %s"


class PostgresSuspensions(Part):
    """`Suspensions` on PostgreSQL."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of pending interrupts, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        rows = await self._db.read(
            tenant, *pending_listing(POSTGRES, tenant, where, after, limit + 1)
        )
        return pending_page(rows, limit)

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts are pending."""
        [(count,)] = await self._db.read(tenant, _COUNT, (tenant,))
        return int(count)
