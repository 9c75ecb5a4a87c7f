"""Timers: wake every run whose time has come. They live in the store, so a restart keeps them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog

from wopr.protocol.errors import WoprError
from wopr.store.port import Clockwork

AT_ONCE = 200
LONGEST_SLEEP_MS = 30_000
# Time for runs that were woken to commit, so that those behind them come into view.
SHORTEST_SLEEP_MS = 5
BACKLOG_SLEEP_MS = 20
# While more runs are due than are woken at once, so many of each tenant are woken as well: the
# earliest runs can all be of one tenant.
OF_EACH_TENANT = 20

log = structlog.get_logger("wopr.timers")


class Timers:
    """One task that sleeps until the next `wake_at` in the store.

    A run that is due stays due in the store until its advance commits. It was woken once, and
    whoever advances it takes care of what goes wrong, so it is not looked at in between.
    """

    def __init__(
        self, store: Clockwork, wake: Callable[[str, str], None], now: Callable[[], int]
    ) -> None:
        self._store = store
        self._wake = wake
        self._now = now
        self._next = 0
        self._sooner = anyio.Event()

    def note(self, wake_at: int | None) -> None:
        """Hear of a new timer; it matters only if it comes before all others."""
        if wake_at is not None and wake_at < self._next:
            self._next = wake_at
            self._sooner.set()

    async def run_forever(self) -> None:
        """Wake due runs until cancelled."""
        while True:
            try:
                await self._wake_due()
            except WoprError as error:
                log.error("timers wait for the store", code=error.code, message=str(error))
                self._next = self._now() + 1000
            pause = max(self._next - self._now(), SHORTEST_SLEEP_MS)
            with anyio.move_on_after(pause / 1000):
                await self._sooner.wait()

    async def _wake_due(self) -> None:
        now = self._now()
        self._sooner = anyio.Event()
        self._next = now + LONGEST_SLEEP_MS
        due = await self._store.due(now, AT_ONCE)
        is_backlog = len(due) == AT_ONCE
        if is_backlog:
            due += await self._store.due_of_each(now, OF_EACH_TENANT)
        for tenant, run_id in due:
            self._wake(tenant, run_id)
        upcoming = await self._store.next_due(now)
        if is_backlog:
            self._next = now + BACKLOG_SLEEP_MS
        elif upcoming is not None:
            self._next = min(self._next, upcoming)
