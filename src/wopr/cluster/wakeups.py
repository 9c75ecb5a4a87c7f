"""Wake-ups: advance a run in the background when it is due, and again after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
import structlog

from wopr.cluster.scheduler import FairScheduler
from wopr.protocol.errors import Unavailable, WoprError
from wopr.store.port import RunRow, StoredRun

# The delay after the store was unavailable, and after an advance failed for another reason.
STORE_RETRY_SECONDS = 1.0
FAILED_DELAY_MS = 60_000
# How long runs that may have crashed a process are watched before the next such runs begin.
WATCH_SECONDS = 12.0

log = structlog.get_logger("wopr.advance")


def warn_of_missing_code(run_id: str, needs: Sequence[str]) -> None:
    """Log that a run waits because no process has the code of its next nodes."""
    log.warning("no process can run a node", run_id=run_id, needs=[n.split() for n in needs])


class Waker(Protocol):
    """Advances runs. A source of wake-ups calls it."""

    def advance_soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background."""
        ...

    async def advance_now(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Advance a run, and again later if that fails.

        `stored` is the run as the caller has just read it from the store.
        """
        ...

    def is_busy(self, run_id: str) -> bool:
        """Return whether this process executes nodes of a run, or advances it."""
        ...

    def must_wait(self, tenant: str) -> bool:
        """Return whether the next run of a tenant waits for the tenant's rate or its other runs."""
        ...


class WakeupSource(Protocol):
    """A source of wake-ups. It calls its waker at least once for each run that is due."""

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Start. Runs that became due before are woken too."""
        ...

    def schedule(self, row: RunRow) -> None:
        """Wake a run that was just committed when it is due."""
        ...

    def wake(self, tenant: str, run_id: str) -> None:
        """Wake another run because of an event that was just committed."""
        ...

    async def forward(self, tenant: str, run_id: str, process: str) -> None:
        """Send a wake-up to the process that has the lease of the run."""
        ...

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Wake a run at a process that has the code that one of its nodes needs.

        The run waits when no process has it.
        """
        ...

    async def stop(self) -> None:
        """Stop waking runs, and wait for the advances in progress."""
        ...


class Wakeups:
    """Calls `advance` for runs: once for several wake-ups of a run, with the tenants in rotation.

    `postpone` makes a run due at a later time and returns its row, or None if the run has ended.
    """

    def __init__(
        self,
        advance: Callable[[str, str, StoredRun | None], Awaitable[None]],
        source: WakeupSource,
        scheduler: FairScheduler,
        *,
        is_busy: Callable[[str], bool],
        postpone: Callable[[str, str, int], Awaitable[RunRow | None]],
        now: Callable[[], int],
    ) -> None:
        self.tasks: anyio.abc.TaskGroup | None = None
        self.source = source
        self.scheduler = scheduler
        # Advances one run. Tests replace it to keep runs from advancing.
        self.advance = advance
        self._is_busy = is_busy
        self._postpone_run = postpone
        self._now = now
        self._waking: set[str] = set()

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start to advance runs that are due."""
        self.tasks = tasks
        self.source.start(tasks, self)

    def advance_soon(self, tenant: str, run_id: str) -> None:
        """Advance a run in the background when its tenant gets a slot."""
        if self.tasks is not None and run_id not in self._waking:
            self._waking.add(run_id)
            self.scheduler.submit(tenant, partial(self._start_advance, self.tasks, tenant, run_id))

    def is_busy(self, run_id: str) -> bool:
        """Return whether this process executes nodes of a run, or advances it."""
        return self._is_busy(run_id)

    def must_wait(self, tenant: str) -> bool:
        """Return whether the next run of a tenant waits for the tenant's rate or its other runs."""
        return self.scheduler.must_wait(tenant)

    def record_begin(self, run_id: str) -> None:
        """Record that the advance of a run has begun. A later wake-up needs another advance."""
        self._waking.discard(run_id)

    async def advance_now(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        """Advance a run, and again later if that fails."""
        async with self.scheduler.slot(tenant):
            await self._advance(tenant, run_id, stored)

    def _start_advance(self, tasks: anyio.abc.TaskGroup, tenant: str, run_id: str) -> None:
        tasks.start_soon(self._advance_with_slot, tenant, run_id)

    async def _advance_with_slot(self, tenant: str, run_id: str) -> None:
        with self.scheduler.release_at_end(tenant):
            await self._advance(tenant, run_id)

    async def _advance(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        try:
            await self.advance(tenant, run_id, stored)
        except Exception as error:  # the outer edge of a task
            await self.retry_later(tenant, run_id, error)

    async def retry_later(self, tenant: str, run_id: str, error: Exception) -> None:
        """Log why a run could not be advanced, and wake it again after a pause."""
        if isinstance(error, WoprError):
            log.error("advance failed", run_id=run_id, code=error.code, message=str(error))
        else:
            log.error("advance failed", run_id=run_id, exc_info=error)
        if isinstance(error, Unavailable) or not await self._postpone(tenant, run_id):
            self._waking.add(run_id)
            if self.tasks is not None:
                self.tasks.start_soon(self._advance_after, STORE_RETRY_SECONDS, tenant, run_id)

    async def _postpone(self, tenant: str, run_id: str) -> bool:
        """Make a run due later: it would probably fail again now, and other runs must not wait."""
        with suppress(WoprError):
            row = await self._postpone_run(tenant, run_id, self._now() + FAILED_DELAY_MS)
            if row is not None:
                self.source.schedule(row)
            self._waking.discard(run_id)
            return True
        return False

    async def _advance_after(self, seconds: float, tenant: str, run_id: str) -> None:
        await anyio.sleep(seconds)
        await self.advance_now(tenant, run_id)
