"""Wake-ups of a process that does not share its store: timers, and recovery after a restart."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from wopr.cluster.wakeups import (
    STORE_RETRY_SECONDS,
    WATCH_SECONDS,
    Waker,
    warn_of_missing_code,
)
from wopr.process.background import BackgroundTask
from wopr.protocol.errors import WoprError
from wopr.protocol.observed_ids import is_observed_run
from wopr.store.port import Maintenance, RunRow, Store

# Due runs that are woken with one query, and the longest time between two queries.
DUE_AT_ONCE: Final = 200
MAX_SLEEP_MS: Final = 30_000
# Woken runs commit in this time, so the next query finds other runs.
MIN_SLEEP_MS: Final = 5
BACKLOG_SLEEP_MS: Final = 20
# With more due runs than one query returns, this many of each tenant are woken as well: the
# earliest runs can all belong to one tenant.
DUE_PER_TENANT: Final = 20
# Unfinished runs of one tenant that are recovered before those of the next tenant. One write
# records them.
PAGE_SIZE = 100
# How often idle runs are removed from the recovery record.
RECORD_UPDATE_SECONDS = 0.25
# The longest time that a page of one tenant delays the next tenant, and the time after which no more
# runs of the page begin.
PAGE_WAIT_SECONDS = 0.25
PAGE_SECONDS = 1.0
# Runs that were recorded when the last process died wait at most this long for the other runs.
ROTATION_SECONDS = 60.0
# A run that is in flight for longer than this after its recovery did not end the process.
MAX_RECORDED_SECONDS = 300.0
# Sorts after every run id: it follows the last run of a tenant.
_LAST_RUN = "\U0010ffff"

T = TypeVar("T")

log = structlog.get_logger("wopr.advance")


class Timers:
    """Wakes every run that is due. Timers are stored, so they survive a restart.

    A run that is due stays due in the store until its advance commits. It is woken once; the
    advance itself handles its failures, so the run is not queried in between.
    """

    def __init__(
        self, store: Maintenance, wake: Callable[[str, str], None], now: Callable[[], int]
    ) -> None:
        self._store = store
        self._wake = wake
        self._now = now
        self._next = 0
        self._task = BackgroundTask("timers", self._wake_due, max_retry_seconds=1.0)
        self.run = self._task.run

    def schedule(self, wake_at: int | None) -> None:
        """Add a timer. It changes the time of the next query only if it is the earliest."""
        if wake_at is not None and wake_at < self._next:
            self._next = wake_at
            self._task.trigger()

    async def _wake_due(self) -> float:
        """Wake the runs that are due; return the seconds until the next query."""
        now = self._now()
        self._next = now + MAX_SLEEP_MS
        due = await self._store.due_runs(now, DUE_AT_ONCE)
        is_backlog = len(due) == DUE_AT_ONCE
        if is_backlog:
            due += await self._store.due_runs_of_each_tenant(now, DUE_PER_TENANT)
        for tenant, run_id in due:
            self._wake(tenant, run_id)
        upcoming = await self._store.next_due(now)
        if is_backlog:
            self._next = now + BACKLOG_SLEEP_MS
        elif upcoming is not None:
            self._next = min(self._next, upcoming)
        return max(self._next - self._now(), MIN_SLEEP_MS) / 1000


class LocalWakeups:
    """`WakeupSource` of a single process: timers, and all runs that are unfinished at the start."""

    def __init__(self, store: Store, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._timers = Timers(store, self._due, now)
        self._waker: Waker | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        # Runs that were recorded when the last process died. They are recovered after all others.
        self._suspects: set[tuple[str, str]] = set()
        # The last run of each tenant that was recovered, while others remain; None before the
        # tenants are known.
        self._cursors: dict[str, str] | None = None
        # Runs whose recovery waits for the rate of their tenant or for its other runs.
        self._postponed: dict[str, set[tuple[str, str]]] = {}
        # Tenants with a page of runs in progress.
        self._in_progress: set[str] = set()
        # Recovered runs that are not idle yet. They are recorded in the store, because each of them
        # may crash the process; `_recorded` has the runs of the last record.
        self._recovering: set[tuple[str, str]] = set()
        self._recorded: set[tuple[str, str]] = set()
        self._recording = anyio.Lock()
        # Recorded runs whose advance has not ended yet.
        self._beginning: set[tuple[str, str]] = set()
        self._has_stopped = False
        # Due runs that wait for their recovery: the timers find them again until they are advanced.
        self._waiting: set[tuple[str, str]] = set()

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Begin to advance every run that has not ended, and start the timers."""
        self._waker = waker
        self._tasks = tasks
        tasks.start_soon(self._recover, waker)

    def schedule(self, row: RunRow) -> None:
        """Wake a run that was just committed when it is due."""
        self._timers.schedule(row.wake_at)

    def clock_changed(self) -> None:
        """Wake the runs that are due. Called by tests that have changed the clock."""
        self._timers.schedule(0)

    def wake(self, tenant: str, run_id: str) -> None:
        """Advance another run in the background."""
        if self._waker is not None:
            self._waker.advance_soon(tenant, run_id)

    async def forward(self, tenant: str, run_id: str, process: str) -> None:
        """Fail: no other process can have the lease of a run."""
        raise AssertionError(
            f"run {run_id} has a lease of {process}, but the store belongs to one process"
        )

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Log that the run waits until this process is started again with the code."""
        warn_of_missing_code(run_id, needs)

    async def stop(self) -> None:
        """Clear the recovery record: a process that stops on request was not ended by a run."""
        self._has_stopped = True
        with suppress(WoprError):
            await self._store.record_recovery(())

    def _due(self, tenant: str, run_id: str) -> None:
        """Advance a run whose timer has fired. During recovery it is recorded first."""
        run = (tenant, run_id)
        if run in self._suspects:
            return
        is_recovering = self._cursors is None or tenant in self._cursors
        if not is_recovering or self._waker is None or self._tasks is None:
            self.wake(tenant, run_id)
        elif self._waker.must_wait(tenant):
            self._postpone([run])
        elif run not in self._waiting:
            self._waiting.add(run)
            self._tasks.start_soon(self._recover_due, run, self._waker)

    async def _recover_due(self, run: tuple[str, str], waker: Waker) -> None:
        try:
            self._postpone(await self._recover_some([run], waker))
        finally:
            self._waiting.discard(run)

    def _postpone(self, runs: Sequence[tuple[str, str]]) -> None:
        for run in runs:
            self._postponed.setdefault(run[0], set()).add(run)

    async def _recover(self, waker: Waker) -> None:
        """Advance every unfinished run once, because the process that executed the runs has ended.

        Tenants are served in rotation, a page of runs each. Runs that were recorded when the last
        process died come last, in two halves. A tenant that must wait for its rate does not delay
        the others.
        """
        suspects = await self._repeat_until_available(
            lambda: self._store.begin_recovery(self._now())
        )
        self._suspects.update(suspects)
        if self._tasks is not None:
            self._tasks.start_soon(self._timers.run)
        cursors = self._cursors = {tenant: "" async for tenant in self._tenants()}
        end = anyio.current_time() + MAX_RECORDED_SECONDS
        while cursors or suspects or self._postponed or self._recovering or self._recorded:
            await self._rotate(cursors, waker)
            ready = [run for run in suspects if not waker.must_wait(run[0])]
            if ready:
                await self._recover_suspects(ready, waker)
                suspects = [run for run in suspects if run in self._suspects]
            if anyio.current_time() > end:
                self._recovering &= self._beginning
            await self._update_record(waker)
            await anyio.sleep(RECORD_UPDATE_SECONDS)

    async def _rotate(self, cursors: dict[str, str], waker: Waker) -> None:
        """Recover pages of the tenants in rotation, until all tenants must wait or time is up."""
        end = anyio.current_time() + ROTATION_SECONDS
        while anyio.current_time() < end:
            tenants = dict.fromkeys([*cursors, *self._postponed])
            ready = [tenant for tenant in tenants if not waker.must_wait(tenant)]
            if not ready and not self._in_progress:
                return
            begun = [tenant for tenant in ready if tenant not in self._in_progress]
            for tenant in begun:
                await self._begin_page(tenant, cursors, waker)
            if not begun:
                await self._update_record(waker)
                await anyio.sleep(RECORD_UPDATE_SECONDS)

    async def _begin_page(self, tenant: str, cursors: dict[str, str], waker: Waker) -> None:
        """Recover a page of a tenant. A slow page continues in the background."""
        done = anyio.Event()
        self._in_progress.add(tenant)
        if self._tasks is not None:
            self._tasks.start_soon(self._recover_page, tenant, cursors, waker, done)
        with anyio.move_on_after(PAGE_WAIT_SECONDS):
            await done.wait()

    async def _recover_page(
        self, tenant: str, cursors: dict[str, str], waker: Waker, done: anyio.Event
    ) -> None:
        try:
            postponed = self._postponed.pop(tenant, set())
            page = sorted(postponed)[:PAGE_SIZE]
            self._postpone(list(postponed.difference(page)))
            if not postponed:
                found = await self._read_unfinished((tenant, cursors[tenant]), PAGE_SIZE)
                page = [run for run in found if run[0] == tenant]
                if page:
                    cursors[tenant] = page[-1][1]
                else:
                    del cursors[tenant]
                page = [run for run in page if run not in self._suspects]
            self._postpone(await self._recover_some(page, waker, PAGE_SECONDS))
        finally:
            self._in_progress.discard(tenant)
            done.set()

    async def _recover_suspects(self, suspects: Sequence[tuple[str, str]], waker: Waker) -> None:
        """Recover the runs that were recorded when the last process died, after all other runs.

        While one half is watched, only that half is recorded. The other half has not begun, or was
        watched before.
        """
        log.warning(
            "recovering runs that may have crashed an earlier process",
            runs=len(suspects),
            run_id=suspects[0][1],
        )
        await self._watch(waker, lambda: True)
        watched, self._recovering = self._recovering, set()
        middle = (len(suspects) + 1) // 2
        for half in filter(None, (suspects[:middle], suspects[middle:])):
            await self._recover_some(half, waker)
            await self._watch(waker, lambda: bool(self._recovering))
            watched |= self._recovering
            self._recovering = set()
        self._recovering = watched

    async def _watch(self, waker: Waker, is_needed: Callable[[], bool]) -> None:
        """Keep the record up to date for a limited time."""
        end = anyio.current_time() + WATCH_SECONDS
        while is_needed() and anyio.current_time() < end:
            await self._update_record(waker)
            await anyio.sleep(RECORD_UPDATE_SECONDS)

    async def _recover_some(
        self, runs: Sequence[tuple[str, str]], waker: Waker, seconds: float = math.inf
    ) -> list[tuple[str, str]]:
        """Record runs and advance them.

        Returns the runs that did not begin because their tenants must wait or time was up.
        """
        own = [run for run in runs if not is_observed_run(run[1])]
        left: list[tuple[str, str]] = []
        end = anyio.current_time() + seconds
        self._beginning.update(own)
        self._recovering.update(own)
        await self._update_record(waker)
        for run in own:
            if anyio.current_time() > end or waker.must_wait(run[0]):
                left.append(run)
            else:
                self._suspects.discard(run)
                await waker.advance_now(*run)
            self._beginning.discard(run)
            # A short advance never yields. Requests must not wait for all of them.
            await anyio.lowlevel.checkpoint()
        return left

    async def _update_record(self, waker: Waker) -> None:
        """Remove idle runs from the recovery record, and add runs that are about to begin."""
        async with self._recording:
            self._recovering = {
                run for run in self._recovering if run in self._beginning or waker.is_busy(run[1])
            }
            if self._recovering != self._recorded and not self._has_stopped:
                recorded = sorted(self._recovering)
                await self._repeat_until_available(lambda: self._store.record_recovery(recorded))
                self._recorded = set(recorded)

    async def _tenants(self) -> AsyncGenerator[str, None]:
        """Yield the tenants with unfinished runs."""
        after: tuple[str, str] | None = None
        while found := await self._read_unfinished(after, 1):
            [(tenant, _)] = found
            yield tenant
            after = (tenant, _LAST_RUN)

    async def _read_unfinished(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        return await self._repeat_until_available(
            partial(self._store.unfinished_runs, after, limit)
        )

    async def _repeat_until_available(self, query: Callable[[], Awaitable[T]]) -> T:
        """Repeat a query until the store is available."""
        while True:
            try:
                return await query()
            except WoprError as error:
                log.error("recovery waits for the store", code=error.code)
                await anyio.sleep(STORE_RETRY_SECONDS)
