"""Shares: a number of places for each tenant, so that no tenant takes the places of another."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio


@dataclass(slots=True)
class _Share:
    """The places of a tenant, and how many tasks have one or wait for one."""

    places: anyio.Semaphore
    tasks: int = 0


class Shares:
    """Gives each tenant `each` places. A tenant that has used them up waits for its own."""

    def __init__(self, each: int) -> None:
        self.each = each
        # Tenants that use a place now.
        self._tenants: dict[str, _Share] = {}

    async def take(self, tenant: str) -> None:
        """Take a place of a tenant, and wait for it if all are taken."""
        share = self._tenants.get(tenant)
        if share is None:
            share = self._tenants[tenant] = _Share(anyio.Semaphore(self.each, fast_acquire=True))
        share.tasks += 1
        try:
            await share.places.acquire()
        except BaseException:
            self._leave(tenant, share)
            raise

    def give_back(self, tenant: str) -> None:
        """Give back a place. The task of the tenant that has waited longest gets it."""
        share = self._tenants[tenant]
        share.places.release()
        self._leave(tenant, share)

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None, None]:
        """Have a place of a tenant during the block."""
        await self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def _leave(self, tenant: str, share: _Share) -> None:
        share.tasks -= 1
        if not share.tasks:
            del self._tenants[tenant]
