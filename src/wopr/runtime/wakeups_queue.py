"""Wake-ups where several processes share a store: a queue in it, and a worker in each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter

import anyio
import anyio.abc
import structlog

from wopr.protocol.errors import WoprError
from wopr.runtime.holding import NO_MEMORY_MS, PUT_OFF_MS, Holding
from wopr.runtime.journal import FIRST_EVENTS
from wopr.runtime.wakeups import STORE_AWAY_SECONDS, Waker, warn_of_missing_code
from wopr.store.port import RunRow, Store, StoredRun
from wopr.store.port.peers import JobWorker, Peers

# Wake-ups that are further off than this are found in time by whoever looks.
NEAR_MS = 20_000
# Runs that are due are taken so many at a time; how often they are looked for, and how seldom.
MOST_DUE = 60
# While there are more of them, so many of each tenant are taken as well: the earliest can all be of
# one tenant.
OF_EACH_TENANT = 20
LOOK_SECONDS = 0.5
SHORTEST_SECONDS = 0.005
# Advances that take longer than this go on in the background, and those behind them begin.
PATIENCE_SECONDS = 0.1
# How long a process that stops waits for advances.
GRACE_SECONDS = 5.0

log = structlog.get_logger("wopr.queue")


class QueueSource:
    """`WakeupSource` on the store's queue. Its wake-ups are queued with the appends that cause them."""

    def __init__(
        self, peers: Peers, holding: Holding, store: Store, now: Callable[[], int], at_once: int
    ) -> None:
        self._peers = peers
        self._store = store
        self._now = now
        self._holding = holding
        self._at_once = at_once
        self._worker: JobWorker | None = None
        self._waker: Waker | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_stopping = False
        self._stopped = anyio.Event()
        self._look_now = anyio.Event()
        # Code that this process has not, and has said so.
        self._warned: set[str] = set()

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Take wake-ups from the queue, if this process executes anything."""
        self._waker = waker
        if self._holding.executes:
            tasks.start_soon(self._serve)
        else:
            self._stopped.set()

    def noted(self, row: RunRow) -> None:
        """Look for what is due when a run of this process is: the next look may be later."""
        if row.wake_at is None or not self._holding.executes:
            return
        delay = row.wake_at - row.updated_at
        if 0 < delay <= NEAR_MS:
            asyncio.get_running_loop().call_later(delay / 1000, self._look)

    def woke(self, tenant: str, run_id: str) -> None:
        """The wake-up is in the queue since the commit."""

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Pass a wake-up on to the process that has the run."""
        await self._peers.tell(tenant, run_id, process)

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Wake the run at a process that has the code; a later one finds it in the store."""
        try:
            is_told = await self._peers.hand_over(tenant, run_id, self._holding.process, needs)
        except WoprError as error:
            # Processes that have the code look for such runs from time to time.
            log.error("a run is not handed over", run_id=run_id, code=error.code)
            return
        if not is_told:
            warn_of_missing_code(run_id, needs)
        elif not self._warned.issuperset(needs):
            # Once for each: a process without the app hands over every run.
            self._warned.update(needs)
            log.warning("runs are handed over", run_id=run_id, needs=[n.split() for n in needs])

    async def stop(self) -> None:
        """Take no more from the queue, and wait for what was begun, for some seconds at most."""
        self._is_stopping = True
        self._look_now.set()
        if self._worker is not None:
            self._worker.stop()
        with anyio.move_on_after(GRACE_SECONDS):
            await self._stopped.wait()

    def _look(self) -> None:
        self._look_now.set()

    async def _serve(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._work_forever)
                tasks.start_soon(self._take_due_forever)
        finally:
            self._stopped.set()

    async def _work_forever(self) -> None:
        """Take single wake-ups from the queue."""
        try:
            while not self._is_stopping:
                self._worker = self._peers.worker(self._advance_job, self._at_once)
                try:
                    await self._worker.run()
                except WoprError as error:
                    log.error("the queue waits for the store", message=str(error))
                if not self._is_stopping:
                    await anyio.sleep(STORE_AWAY_SECONDS)
        finally:
            self._worker = None

    async def _take_due_forever(self) -> None:
        """Take runs whose time has come from their rows, many with one statement."""
        while not self._is_stopping:
            self._look_now = anyio.Event()
            seconds = LOOK_SECONDS
            try:
                with anyio.CancelScope(shield=True):
                    is_more = await self._take_due()
                    seconds = 0.0 if is_more else await self._until_next_due()
            except WoprError as error:
                log.error("timers wait for the store", code=error.code, message=str(error))
                seconds = STORE_AWAY_SECONDS
            with anyio.move_on_after(seconds):
                await self._look_now.wait()

    async def _until_next_due(self) -> float:
        """How many seconds to wait before the next look."""
        upcoming = await self._store.next_due(self._now())
        if upcoming is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max((upcoming - self._now()) / 1000, SHORTEST_SECONDS))

    async def _take_due(self) -> bool:
        """Advance a batch of runs that are due; whether more of them should be taken at once."""
        if not self._holding.has_room:
            return False
        now = self._now()
        due = await self._peers.take_due(now, MOST_DUE)
        is_more = len(due) == MOST_DUE
        if is_more:
            others = await self._store.due_of_each(now, OF_EACH_TENANT)
            due += await self._peers.take(now, [run_id for _, run_id in others])
            is_more = not all(self._must_wait(tenant) for tenant, _ in due)
        # No more at once than jobs, in two parts: one is read while the other is written.
        size = max(self._at_once // 2, 1)
        limiter = anyio.CapacityLimiter(min(self._at_once, 2))
        async with anyio.create_task_group() as tasks:
            rotation = _in_rotation(due)
            for start in range(0, len(due), size):
                tasks.start_soon(self._advance_part, limiter, rotation[start : start + size])
        return is_more

    async def _advance_part(
        self, limiter: anyio.CapacityLimiter, part: Sequence[tuple[str, str]]
    ) -> None:
        async with limiter:
            await self._patiently(partial(self._advance_all, part))

    async def _advance_all(self, part: Sequence[tuple[str, str]]) -> None:
        by_tenant = groupby(sorted(part, key=itemgetter(0)), key=itemgetter(0))
        async with anyio.create_task_group() as tasks:
            for tenant, runs in by_tenant:
                tasks.start_soon(self._advance_runs, tenant, [run_id for _, run_id in runs])

    async def _advance_job(self, tenant: str, run_id: str) -> None:
        await self._patiently(partial(self._advance, tenant, run_id))

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin something, and wait for its end for a moment; then it goes on in the background.

        The row of a run is due until its advance is written, so no wake-up is lost with the process.
        """
        if self._tasks is not None:
            done = anyio.Event()
            self._tasks.start_soon(self._do, work, done)
            with anyio.move_on_after(PATIENCE_SECONDS):
                await done.wait()

    async def _do(self, work: Callable[[], Awaitable[None]], done: anyio.Event) -> None:
        try:
            await work()
        except Exception as error:  # the outer edge of a task
            log.error("wake-ups wait for the store", exc_info=error)
        finally:
            done.set()

    def _must_wait(self, tenant: str) -> bool:
        return self._waker is not None and self._waker.must_wait(tenant)

    async def _advance_runs(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Advance runs of a tenant that are read with one statement."""
        stored: dict[str, StoredRun] = {}
        # After any error each run is read by its own advance, which deals with its own error.
        with suppress(Exception):
            loaded = await self._store.load(tenant, run_ids, FIRST_EVENTS)
            stored = {run.row.run_id: run for run in loaded}
        async with anyio.create_task_group() as tasks:
            for run_id in run_ids:
                tasks.start_soon(self._advance, tenant, run_id, stored.get(run_id))

    async def _advance(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        if self._waker is None:
            return
        # What this process has needs no more room, and nobody else may wake it.
        if not (self._holding.has(tenant, run_id) or self._holding.may_take(tenant)):
            # Others may have room; and those who wait in the queue behind it should not wait too.
            await self._peers.queue(tenant, run_id, PUT_OFF_MS)
            return
        if self._holding.memory.is_waiting(tenant, run_id):
            row = await self._store.run(tenant, run_id) if stored is None else stored.row
            if row is not None and row.wish is None:
                # It is woken here when there is memory; another process may have some before.
                await self._peers.queue(tenant, run_id, NO_MEMORY_MS)
                return
        if self._waker.must_wait(tenant):
            # Until its turn comes nothing waits for it here. Its row is due again if none comes.
            self._waker.soon(tenant, run_id)
        else:
            await self._waker.now(tenant, run_id, stored)


def _in_rotation(due: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Order runs so that their tenants take turns."""
    places: Counter[str] = Counter()
    ranked: list[tuple[int, tuple[str, str]]] = []
    for run in due:
        ranked.append((places[run[0]], run))
        places[run[0]] += 1
    ranked.sort(key=itemgetter(0))
    return [run for _, run in ranked]
