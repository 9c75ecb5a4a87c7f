"""Wake-ups: advance a run in the background, when it is due and again when that went wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.errors import Unavailable, WoprError
from wopr.runtime.journal import PAGE, Journal
from wopr.runtime.timers import Timers

# When to try again after the store was away, and after an advance that failed for another reason.
STORE_AWAY_SECONDS = 1.0
FAILED_MS = 60_000

log = structlog.get_logger("wopr.advance")


class Wakeups:
    """Calls `advance` for runs, each once however often it is asked for."""

    def __init__(self, journal: Journal, advance: Callable[[str, str], Awaitable[None]]) -> None:
        self.timers = Timers(journal.store, self.soon, journal.now)
        self.tasks: anyio.abc.TaskGroup | None = None
        self._journal = journal
        self._advance = advance
        self._waking: set[str] = set()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the timers, and begin to take up every run that has not ended."""
        self.tasks = tasks
        tasks.start_soon(self.timers.run_forever)
        tasks.start_soon(self._take_up)

    async def _take_up(self) -> None:
        """Advance every unfinished run once: the process that had them in hand is gone."""
        after: tuple[str, str] | None = None
        while page := await self._unfinished(after):
            for tenant, run_id in page:
                if not is_observed_run(run_id):
                    await self.now(tenant, run_id)
                # A short advance never waits, and those who ask now should not have to.
                await anyio.lowlevel.checkpoint()
            after = page[-1]

    async def _unfinished(self, after: tuple[str, str] | None) -> list[tuple[str, str]]:
        while True:
            try:
                return await self._journal.store.unfinished(after, PAGE)
            except WoprError as error:
                log.error("unfinished runs wait for the store", code=error.code)
                await anyio.sleep(STORE_AWAY_SECONDS)

    def soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background."""
        if self.tasks is not None and run_id not in self._waking:
            self._waking.add(run_id)
            self.tasks.start_soon(self.now, tenant, run_id)

    def begun(self, run_id: str) -> None:
        """Hear that a run's advance has begun: whatever happens from now on needs another one."""
        self._waking.discard(run_id)

    async def now(self, tenant: str, run_id: str) -> None:
        """Advance a run, and see to it that it is advanced later if that fails."""
        try:
            await self._advance(tenant, run_id)
        except Exception as error:  # the outer edge of a task
            await self.later(tenant, run_id, error)

    async def later(self, tenant: str, run_id: str, error: Exception) -> None:
        """Say what kept a run from advancing, and wake it once more after a while."""
        if isinstance(error, WoprError):
            log.error("advance failed", run_id=run_id, code=error.code, message=str(error))
        else:
            log.error("advance failed", run_id=run_id, exc_info=error)
        if isinstance(error, Unavailable) or not await self._put_off(tenant, run_id):
            self._waking.add(run_id)
            if self.tasks is not None:
                self.tasks.start_soon(self._after, STORE_AWAY_SECONDS, tenant, run_id)

    async def _put_off(self, tenant: str, run_id: str) -> bool:
        """Make room for others: nothing says that this run will do better at once."""
        until = self._journal.now() + FAILED_MS
        with suppress(WoprError):
            await self._journal.put_off(tenant, run_id, until)
            self.timers.note(until)
            self._waking.discard(run_id)
            return True
        return False

    async def _after(self, seconds: float, tenant: str, run_id: str) -> None:
        await anyio.sleep(seconds)
        await self.now(tenant, run_id)
