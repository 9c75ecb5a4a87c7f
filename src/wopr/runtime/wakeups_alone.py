"""Wake-ups of a process that has the store to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.errors import WoprError
from wopr.runtime.timers import Timers
from wopr.runtime.wakeups import STORE_AWAY_SECONDS, Waker, warn_of_missing_code
from wopr.store.port import Clockwork, RunRow

PAGE = 1000

log = structlog.get_logger("wopr.advance")


class AloneSource:
    """`WakeupSource` in one process: timers, and everything unfinished when it starts."""

    def __init__(self, store: Clockwork, now: Callable[[], int]) -> None:
        self._store = store
        self._timers = Timers(store, self.woke, now)
        self._waker: Waker | None = None

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Start the timers, and begin to take up every run that has not ended."""
        self._waker = waker
        tasks.start_soon(self._timers.run_forever)
        tasks.start_soon(self._take_up, waker)

    def noted(self, row: RunRow) -> None:
        """Hear of a new timer."""
        self._timers.note(row.wake_at)

    def look_again(self) -> None:
        """Hear that the clock was turned: whatever is due by now is woken."""
        self._timers.note(0)

    def woke(self, tenant: str, run_id: str) -> None:
        """Advance the other run in the background."""
        if self._waker is not None:
            self._waker.soon(tenant, run_id)

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Nobody else has a run."""
        raise AssertionError(f"run {run_id} is held by {process} of a store with one process")

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Log that the run waits until this process is started again with the code."""
        warn_of_missing_code(run_id, needs)

    async def stop(self) -> None:
        """The timers end with their task."""

    async def _take_up(self, waker: Waker) -> None:
        """Advance every unfinished run once: the process that had them in hand is gone."""
        after: tuple[str, str] | None = None
        while page := await self._unfinished(after):
            for tenant, run_id in page:
                if not is_observed_run(run_id):
                    await waker.now(tenant, run_id)
                # A short advance never waits, and those who ask now should not have to.
                await anyio.lowlevel.checkpoint()
            after = page[-1]

    async def _unfinished(self, after: tuple[str, str] | None) -> list[tuple[str, str]]:
        while True:
            try:
                return await self._store.unfinished(after, PAGE)
            except WoprError as error:
                log.error("unfinished runs wait for the store", code=error.code)
                await anyio.sleep(STORE_AWAY_SECONDS)
