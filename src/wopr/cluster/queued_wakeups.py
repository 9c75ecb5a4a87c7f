"""Wake-ups of processes that share a store: a queue in the store, and a worker in each process."""

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

from wopr.cluster.leases import NO_MEMORY_DELAY_MS, NO_ROOM_DELAY_MS, Leases
from wopr.cluster.wakeups import STORE_RETRY_SECONDS, Waker, warn_of_missing_code
from wopr.process.background import BackgroundTask
from wopr.protocol.errors import WoprError
from wopr.store.port import RunRow, Store, StoredRun
from wopr.store.port.peers import JobWorker, Peers

# The regular query finds wake-ups that are later than this.
MAX_TIMER_MS = 20_000
# Due runs that are taken with one query. With more due runs than that, this many of each tenant are
# taken as well: the earliest runs can all belong to one tenant.
DUE_AT_ONCE = 60
DUE_PER_TENANT = 20
# The longest and the shortest time between two queries.
MAX_QUERY_SECONDS = 0.5
MIN_QUERY_SECONDS = 0.005
# An advance that takes longer than this continues in the background, and the next one begins.
ADVANCE_WAIT_SECONDS = 0.1
# How long a process that stops waits for its advances.
STOP_SECONDS = 5.0

log = structlog.get_logger("wopr.queue")


class QueuedWakeups:
    """`WakeupSource` on the queue of the store.

    A wake-up is queued in the transaction of the append that causes it. `first_events` is the
    number of events that are read together with the row of a run.
    """

    def __init__(
        self,
        peers: Peers,
        leases: Leases,
        store: Store,
        now: Callable[[], int],
        *,
        at_once: int,
        first_events: int,
    ) -> None:
        self._peers = peers
        self._store = store
        self._now = now
        self._leases = leases
        self._at_once = at_once
        self._first_events = first_events
        self._worker: JobWorker | None = None
        self._waker: Waker | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped = anyio.Event()
        self._worker_task = BackgroundTask(
            "queue worker",
            self._run_worker,
            period=STORE_RETRY_SECONDS,
            max_retry_seconds=STORE_RETRY_SECONDS,
        )
        self._due_runs_task = BackgroundTask(
            "due runs", self._take_due_once, is_shielded=True, max_retry_seconds=STORE_RETRY_SECONDS
        )
        # Code that this process lacks and has logged.
        self._warned: set[str] = set()

    def start(self, tasks: anyio.abc.TaskGroup, waker: Waker) -> None:
        """Take wake-ups from the queue, if this process executes anything."""
        self._waker = waker
        if self._leases.executes:
            tasks.start_soon(self._run_tasks)
        else:
            self._stopped.set()

    def schedule(self, row: RunRow) -> None:
        """Query for due runs when this run is due, if the regular query may be too late."""
        if row.wake_at is None or not self._leases.executes:
            return
        delay = row.wake_at - row.updated_at
        if 0 < delay <= MAX_TIMER_MS:
            asyncio.get_running_loop().call_later(delay / 1000, self._due_runs_task.trigger)

    def wake(self, tenant: str, run_id: str) -> None:
        """Do nothing: the commit has put the wake-up into the queue."""

    async def forward(self, tenant: str, run_id: str, process: str) -> None:
        """Send a wake-up to the process that has the lease of the run."""
        await self._peers.notify_holder(tenant, run_id, process)

    async def hand_over(self, tenant: str, run_id: str, needs: Sequence[str]) -> None:
        """Wake the run at a process that has the code.

        A process that has the code and starts later finds the run in the store.
        """
        try:
            is_handed_over = await self._peers.hand_over(
                tenant, run_id, self._leases.process, needs
            )
        except WoprError as error:
            # Processes that have the code query for such runs regularly.
            log.error("run not handed over", run_id=run_id, code=error.code)
            return
        if not is_handed_over:
            warn_of_missing_code(run_id, needs)
        elif not self._warned.issuperset(needs):
            # Logged once for each need: a process without the app hands over every run.
            self._warned.update(needs)
            log.warning("runs handed over", run_id=run_id, needs=[n.split() for n in needs])

    async def stop(self) -> None:
        """Take no more wake-ups from the queue, and wait some seconds for advances in progress."""
        self._worker_task.stop()
        self._due_runs_task.stop()
        if self._worker is not None:
            self._worker.stop()
        with anyio.move_on_after(STOP_SECONDS):
            await self._stopped.wait()

    async def _run_tasks(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._worker_task.run)
                tasks.start_soon(self._due_runs_task.run)
        finally:
            self._stopped.set()

    async def _run_worker(self) -> None:
        """Take single wake-ups from the queue."""
        self._worker = self._peers.create_worker(self._advance_job, self._at_once)
        try:
            await self._worker.run()
        finally:
            self._worker = None

    async def _take_due_once(self) -> float:
        """Advance due runs, many with one query; return the seconds until the next query."""
        if await self._take_due():
            return 0.0
        upcoming = await self._store.next_due(self._now())
        if upcoming is None:
            return MAX_QUERY_SECONDS
        return min(MAX_QUERY_SECONDS, max((upcoming - self._now()) / 1000, MIN_QUERY_SECONDS))

    async def _take_due(self) -> bool:
        """Advance a batch of due runs; return True when more runs can be taken at once."""
        if not self._leases.has_room:
            return False
        now = self._now()
        due = await self._peers.take_due(now, DUE_AT_ONCE)
        is_more = len(due) == DUE_AT_ONCE
        if is_more:
            others = await self._store.due_runs_of_each_tenant(now, DUE_PER_TENANT)
            due += await self._peers.take_runs(now, [run_id for _, run_id in others])
            is_more = not all(self._must_wait(tenant) for tenant, _ in due)
        # At most `at_once` runs at a time, in two parts: one is read while the other is written.
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
            await self._start(partial(self._advance_all, part))

    async def _advance_all(self, part: Sequence[tuple[str, str]]) -> None:
        by_tenant = groupby(sorted(part, key=itemgetter(0)), key=itemgetter(0))
        async with anyio.create_task_group() as tasks:
            for tenant, runs in by_tenant:
                tasks.start_soon(self._advance_runs, tenant, [run_id for _, run_id in runs])

    async def _advance_job(self, tenant: str, run_id: str) -> None:
        await self._start(partial(self._advance, tenant, run_id))

    async def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start work and wait for its end for a short time. Then it continues in the background.

        The row of a run is due until its advance is written, so a crash loses no wake-up.
        """
        if self._tasks is not None:
            done = anyio.Event()
            self._tasks.start_soon(self._run_and_set, work, done)
            with anyio.move_on_after(ADVANCE_WAIT_SECONDS):
                await done.wait()

    async def _run_and_set(self, work: Callable[[], Awaitable[None]], done: anyio.Event) -> None:
        try:
            await work()
        except Exception as error:  # the outer edge of a task
            log.error("wake-up failed", exc_info=error)
        finally:
            done.set()

    def _must_wait(self, tenant: str) -> bool:
        return self._waker is not None and self._waker.must_wait(tenant)

    async def _advance_runs(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Advance runs of a tenant. They are read with one statement."""
        stored: dict[str, StoredRun] = {}
        # After an error each run is read by its own advance, which handles its own error.
        with suppress(Exception):
            loaded = await self._store.load_runs(tenant, run_ids, self._first_events)
            stored = {run.row.run_id: run for run in loaded}
        async with anyio.create_task_group() as tasks:
            for run_id in run_ids:
                tasks.start_soon(self._advance, tenant, run_id, stored.get(run_id))

    async def _advance(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        if self._waker is None:
            return
        # A run whose lease this process already has needs no more room.
        if not (self._leases.has(tenant, run_id) or self._leases.has_room_for(tenant)):
            # Other processes may have room, and the next runs in the queue must not wait.
            await self._peers.queue_wakeup(tenant, run_id, NO_ROOM_DELAY_MS)
            return
        if self._leases.memory.is_waiting(tenant, run_id):
            row = await self._store.run(tenant, run_id) if stored is None else stored.row
            if row is not None and row.pending_command is None:
                # This process wakes the run when it has memory. Another one may have it earlier.
                await self._peers.queue_wakeup(tenant, run_id, NO_MEMORY_DELAY_MS)
                return
        if self._waker.must_wait(tenant):
            # No task waits for the slot. The row is due again if the run gets no slot.
            self._waker.advance_soon(tenant, run_id)
        else:
            await self._waker.advance_now(tenant, run_id, stored)


def _in_rotation(due: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Order runs so that their tenants alternate."""
    ranks: Counter[str] = Counter()
    ranked: list[tuple[int, tuple[str, str]]] = []
    for run in due:
        ranked.append((ranks[run[0]], run))
        ranks[run[0]] += 1
    ranked.sort(key=itemgetter(0))
    return [run for _, run in ranked]
