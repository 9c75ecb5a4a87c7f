"""A task that works off one of the store's queues of runs with news, in their order.

The store knows which runs have news, by an entry written in the transaction that made them. An
entry is taken out after the news were passed on; between the two the host may die, and then they
are passed on again, to somebody who finds that they are there. So nothing is lost and nothing is
there twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import anyio
import structlog

from wopr.protocol.errors import Unavailable, WoprError
from wopr.store.port.projections import Projections, Unprojected

# Passes on all news of these `(tenant, run_id)`.
Settle: TypeAlias = Callable[[Sequence[tuple[str, str]]], Awaitable[None]]

# Runs that move on quickly are looked at once for several of their steps.
PAUSE_SECONDS: Final = 0.2
# How often the store is asked for what nobody in this process has heard of: news that a dead one
# left behind, or those of the processes that it shares the store with.
SWEEP_SECONDS: Final = 30.0
SHARED_SWEEP_SECONDS: Final = 1.0
STORE_AWAY_SECONDS: Final = 1.0
# Runs that are settled together.
AT_ONCE: Final = 64

log = structlog.get_logger("wopr.fleet")


class Debts:
    """Settles the news of the host's own runs, or those of observed ones."""

    def __init__(
        self,
        store: Projections,
        settle: Settle,
        *,
        observed: bool = False,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._store = store
        self._settle = settle
        self._observed = observed
        self._sweep_seconds = sweep_seconds
        self._news = anyio.Event()
        # Entries that could not be settled; new news of their run, or a restart, tries again.
        self._given_up: set[int] = set()

    def wake(self) -> None:
        """Hear that a run has news."""
        self._news.set()

    async def run_forever(self) -> None:
        """Settle until cancelled."""
        while True:
            self._news = anyio.Event()
            try:
                await self.catch_up()
            except WoprError as error:
                log.error("the fleet waits for the store", code=error.code, message=str(error))
                await anyio.sleep(STORE_AWAY_SECONDS)
                continue
            with anyio.move_on_after(self._sweep_seconds):
                await self._news.wait()
            await anyio.sleep(PAUSE_SECONDS)

    async def catch_up(self) -> None:
        """Settle every run that has news now."""
        after = 0
        while page := await self._store.unprojected(after, AT_ONCE, observed=self._observed):
            after = page[-1].place
            waiting = [each for each in page if each.place not in self._given_up]
            await self._store.projected(await self._settle_all(waiting))

    async def _settle_all(self, entries: Sequence[Unprojected]) -> Sequence[Unprojected]:
        """Settle runs together, which is cheaper, or else each by itself; those that went well."""
        try:
            await self._settle([(each.tenant, each.run_id) for each in entries])
        except Unavailable:
            raise
        except Exception:
            # One of them is to blame, and must not keep the others back.
            return [each for each in entries if await self._attempt(each)]
        return entries

    async def _attempt(self, entry: Unprojected) -> bool:
        try:
            await self._settle([(entry.tenant, entry.run_id)])
        except Unavailable:
            raise
        except Exception as error:  # the outer edge of a task
            self._given_up.add(entry.place)
            log.error("run not passed on", run_id=entry.run_id, exc_info=error)
            return False
        return True
