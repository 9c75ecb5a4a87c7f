"""Wake-ups: advance a run in the background, when it is due and again when that went wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
import structlog

from wopr.protocol.errors import Unavailable, WoprError
from wopr.runtime.journal import Journal
from wopr.runtime.turns import Turns
from wopr.store.port import RunRow, StoredRun

# When to try again after the store was away, and after an advance that failed for another reason.
STORE_AWAY_SECONDS = 1.0
FAILED_MS = 60_000
# How long runs that a process died with are watched without other such runs before those begin.
WATCH_SECONDS = 12.0

log = structlog.get_logger("wopr.advance")


def warn_of_missing_code(run_id: str, needs: Sequence[str]) -> None:
    """Log that a run waits, because no process has the code of its next nodes."""
    log.warning("no process can run a node", run_id=run_id, needs=[n.split() for n in needs])


class Waker(Protocol):
    """Advances runs: what a source of wake-ups calls."""

    def soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background."""
        ...

    async def now(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Advance a run, and see to it that it is advanced later if that fails.

        `stored` is the run as the caller has just read it from the store.
        """
        ...

    def is_busy(self, run_id: str) -> bool:
        """Whether this process executes nodes of a run, or advances it."""
        ...

    def must_wait(self, tenant: str) -> bool:
        """Whether the next run of a tenant waits for the tenant's rate or its other runs."""
        ...


class WakeupSource(Protocol):
    """Where wake-ups come from: it calls its waker for each run that is due, once or more often."""

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Begin, with all that fell due before."""
        ...

    def noted(self, row: RunRow) -> None:
        """Hear of a run as it was just committed, and when it is due."""
        ...

    def woke(self, tenant: str, run_id: str) -> None:
        """Hear that what was just committed wakes this other run."""
        ...

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Pass a wake-up on to the process that has the run."""
        ...

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Wake a run at a process that has the code that one of its nodes needs.

        The run waits when there is none.
        """
        ...

    async def stop(self) -> None:
        """Call no more, and wait for what was begun."""
        ...


class Wakeups:
    """Calls `advance` for runs, each once however often it is asked for, tenants in rotation."""

    def __init__(
        self,
        journal: Journal,
        advance: Callable[[str, str, StoredRun | None], Awaitable[None]],
        source: WakeupSource,
        is_busy: Callable[[str], bool],
    ) -> None:
        self.tasks: anyio.abc.TaskGroup | None = None
        self.source = source
        self.turns = Turns(journal.quotas.delay)
        journal.quotas.waiting_runs = self.turns.waiting_of
        self._journal = journal
        # Advances one run. A test that wants runs to stay where they are replaces it.
        self.advance = advance
        self._is_busy = is_busy
        self._waking: set[str] = set()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Begin to advance what is due."""
        self.tasks = tasks
        self.source.start(tasks, self)

    def soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background, when it is its tenant's turn."""
        if self.tasks is not None and run_id not in self._waking:
            self._waking.add(run_id)
            self.turns.take(tenant, partial(self._begin, self.tasks, tenant, run_id))

    def is_busy(self, run_id: str) -> bool:
        """Whether this process executes nodes of a run, or advances it."""
        return self._is_busy(run_id)

    def must_wait(self, tenant: str) -> bool:
        """Whether the next run of a tenant waits for the tenant's rate or its other runs."""
        return self.turns.must_wait(tenant)

    def begun(self, run_id: str) -> None:
        """Hear that a run's advance has begun: whatever happens from now on needs another one."""
        self._waking.discard(run_id)

    async def now(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Advance a run, and see to it that it is advanced later if that fails."""
        async with self.turns.turn(tenant):
            await self._in_turn(tenant, run_id, stored)

    def _begin(self, tasks: anyio.abc.TaskGroup, tenant: str, run_id: str) -> None:
        tasks.start_soon(self._with_turn, tenant, run_id)

    async def _with_turn(self, tenant: str, run_id: str) -> None:
        with self.turns.held(tenant):
            await self._in_turn(tenant, run_id)

    async def _in_turn(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        try:
            await self.advance(tenant, run_id, stored)
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
        with suppress(WoprError):
            row = await self._journal.put_off(tenant, run_id, self._journal.now() + FAILED_MS)
            if row is not None:
                self.source.noted(row)
            self._waking.discard(run_id)
            return True
        return False

    async def _after(self, seconds: float, tenant: str, run_id: str) -> None:
        await anyio.sleep(seconds)
        await self.now(tenant, run_id)
