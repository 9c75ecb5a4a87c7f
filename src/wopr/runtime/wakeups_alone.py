"""Wake-ups of a process that has the store to itself."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from wopr.fleet.observed_ids import is_observed_run
from wopr.protocol.errors import WoprError
from wopr.runtime.timers import Timers
from wopr.runtime.wakeups import (
    STORE_AWAY_SECONDS,
    WATCH_SECONDS,
    Waker,
    warn_of_missing_code,
)
from wopr.store.port import RunRow, Store

# Unfinished runs of one tenant that are recovered together, before those of the next tenant are.
# One write names them.
PAGE = 100
# How often runs that are idle by now are taken off the record.
LOOK_SECONDS = 0.25
# How long a page of one tenant holds up the next tenant, and when no more of its runs begin.
PATIENCE_SECONDS = 0.25
PAGE_SECONDS = 1.0
# Suspects wait at most this long for the other runs.
OTHERS_SECONDS = 60.0
# Recovered runs that are in flight for longer than this did not end the process.
ON_RECORD_SECONDS = 300.0
# Sorts after every run id: it follows the last run of a tenant.
_LAST_RUN = "\U0010ffff"

T = TypeVar("T")

log = structlog.get_logger("wopr.advance")


class AloneSource:
    """`WakeupSource` in one process: timers, and everything unfinished when it starts."""

    def __init__(self, store: Store, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._timers = Timers(store, self._due, now)
        self._waker: Waker | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        # Runs that the last process died with. They are recovered after all others.
        self._suspects: set[tuple[str, str]] = set()
        # The last run of each tenant that was taken up, while others remain; None before the tenants
        # are known.
        self._cursors: dict[str, str] | None = None
        # Runs whose recovery waits for the rate of their tenant or for its other runs.
        self._late: dict[str, set[tuple[str, str]]] = {}
        # Tenants with a page of runs in progress.
        self._in_progress: set[str] = set()
        # Recovered runs that are not idle yet, and what the store has of them on record in case
        # one of them ends the process.
        self._recovering: set[tuple[str, str]] = set()
        self._recorded: set[tuple[str, str]] = set()
        self._recording = anyio.Lock()
        # Runs on record whose advance has not ended yet.
        self._beginning: set[tuple[str, str]] = set()
        self._has_stopped = False
        # Due runs that wait for their recovery: the timers find them again until they are advanced.
        self._waiting: set[tuple[str, str]] = set()

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Begin to take up every run that has not ended, and start the timers."""
        self._waker = waker
        self._tasks = tasks
        tasks.start_soon(self._recover, waker)

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
        """Forget the record: a process that is asked to stop was not ended by a run."""
        self._has_stopped = True
        with suppress(WoprError):
            await self._store.record_recovery(())

    def _due(self, tenant: str, run_id: str) -> None:
        """Advance a run whose timer has fired; on record first while runs are being recovered."""
        run = (tenant, run_id)
        if run in self._suspects:
            return
        is_recovering = self._cursors is None or tenant in self._cursors
        if not is_recovering or self._waker is None or self._tasks is None:
            self.woke(tenant, run_id)
        elif self._waker.must_wait(tenant):
            self._put_off([run])
        elif run not in self._waiting:
            self._waiting.add(run)
            self._tasks.start_soon(self._recover_due, run, self._waker)

    async def _recover_due(self, run: tuple[str, str], waker: Waker) -> None:
        try:
            self._put_off(await self._recover_some([run], waker))
        finally:
            self._waiting.discard(run)

    def _put_off(self, runs: Sequence[tuple[str, str]]) -> None:
        for run in runs:
            self._late.setdefault(run[0], set()).add(run)

    async def _recover(self, waker: Waker) -> None:
        """Advance every unfinished run once: the process that executed them is gone.

        Tenants take turns, a page of runs each. Runs that were on record when the last process died
        come last, one half of them after the other. A tenant that must wait for its rate holds up
        none of the others.
        """
        suspects = await self._patiently(lambda: self._store.begin_recovery(self._now()))
        self._suspects.update(suspects)
        if self._tasks is not None:
            self._tasks.start_soon(self._timers.run_forever)
        cursors = self._cursors = {tenant: "" async for tenant in self._tenants()}
        end = anyio.current_time() + ON_RECORD_SECONDS
        while cursors or suspects or self._late or self._recovering or self._recorded:
            await self._rotate(cursors, waker)
            ready = [run for run in suspects if not waker.must_wait(run[0])]
            if ready:
                await self._recover_suspects(ready, waker)
                suspects = [run for run in suspects if run in self._suspects]
            if anyio.current_time() > end:
                self._recovering &= self._beginning
            await self._look(waker)
            await anyio.sleep(LOOK_SECONDS)

    async def _rotate(self, cursors: dict[str, str], waker: Waker) -> None:
        """Recover pages of the tenants in turn until those that remain must wait, or for a while."""
        end = anyio.current_time() + OTHERS_SECONDS
        while anyio.current_time() < end:
            tenants = dict.fromkeys([*cursors, *self._late])
            ready = [tenant for tenant in tenants if not waker.must_wait(tenant)]
            if not ready and not self._in_progress:
                return
            begun = [tenant for tenant in ready if tenant not in self._in_progress]
            for tenant in begun:
                await self._begin_page(tenant, cursors, waker)
            if not begun:
                await self._look(waker)
                await anyio.sleep(LOOK_SECONDS)

    async def _begin_page(self, tenant: str, cursors: dict[str, str], waker: Waker) -> None:
        """Recover some runs of a tenant. What takes long goes on in the background."""
        done = anyio.Event()
        self._in_progress.add(tenant)
        if self._tasks is not None:
            self._tasks.start_soon(self._recover_page, tenant, cursors, waker, done)
        with anyio.move_on_after(PATIENCE_SECONDS):
            await done.wait()

    async def _recover_page(
        self, tenant: str, cursors: dict[str, str], waker: Waker, done: anyio.Event
    ) -> None:
        try:
            late = self._late.pop(tenant, set())
            page = sorted(late)[:PAGE]
            self._put_off(list(late.difference(page)))
            if not late:
                found = await self._unfinished((tenant, cursors[tenant]), PAGE)
                page = [run for run in found if run[0] == tenant]
                if page:
                    cursors[tenant] = page[-1][1]
                else:
                    del cursors[tenant]
                page = [run for run in page if run not in self._suspects]
            self._put_off(await self._recover_some(page, waker, PAGE_SECONDS))
        finally:
            self._in_progress.discard(tenant)
            done.set()

    async def _recover_suspects(self, suspects: Sequence[tuple[str, str]], waker: Waker) -> None:
        """Recover the runs that the last process died with, after this one has lived without them.

        While one half is watched, only that half is on record. The rest has not begun, or was
        watched before.
        """
        log.warning(
            "runs are recovered last: the last process died with them",
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

    async def _watch(self, waker: Waker, goes_on: Callable[[], bool]) -> None:
        """Keep the record up to date for a limited time."""
        end = anyio.current_time() + WATCH_SECONDS
        while goes_on() and anyio.current_time() < end:
            await self._look(waker)
            await anyio.sleep(LOOK_SECONDS)

    async def _recover_some(
        self, runs: Sequence[tuple[str, str]], waker: Waker, seconds: float = math.inf
    ) -> list[tuple[str, str]]:
        """Advance runs that are on record meanwhile.

        Returns those that did not begin: their tenants must wait, or the time was up before.
        """
        own = [run for run in runs if not is_observed_run(run[1])]
        left: list[tuple[str, str]] = []
        end = anyio.current_time() + seconds
        self._beginning.update(own)
        self._recovering.update(own)
        await self._look(waker)
        for run in own:
            if anyio.current_time() > end or waker.must_wait(run[0]):
                left.append(run)
            else:
                self._suspects.discard(run)
                await waker.now(*run)
            self._beginning.discard(run)
            # A short advance never waits. Requests must not wait for all of them.
            await anyio.lowlevel.checkpoint()
        return left

    async def _look(self, waker: Waker) -> None:
        """Take runs that are idle off the record, and put those on it that are about to begin."""
        async with self._recording:
            self._recovering = {
                run for run in self._recovering if run in self._beginning or waker.is_busy(run[1])
            }
            if self._recovering != self._recorded and not self._has_stopped:
                recorded = sorted(self._recovering)
                await self._patiently(lambda: self._store.record_recovery(recorded))
                self._recorded = set(recorded)

    async def _tenants(self) -> AsyncGenerator[str, None]:
        """Find the tenants with unfinished runs."""
        after: tuple[str, str] | None = None
        while found := await self._unfinished(after, 1):
            [(tenant, _)] = found
            yield tenant
            after = (tenant, _LAST_RUN)

    async def _unfinished(self, after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        return await self._patiently(partial(self._store.unfinished, after, limit))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store until it answers."""
        while True:
            try:
                return await ask()
            except WoprError as error:
                log.error("unfinished runs wait for the store", code=error.code)
                await anyio.sleep(STORE_AWAY_SECONDS)
