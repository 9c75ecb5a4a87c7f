"""The contract of `WakeupSource` for every adapter: due runs are advanced in time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
from procrastinate.worker import Worker

from tests.support.rows import TENANT, batch, ended
from wopr.cluster.leases import Leases
from wopr.cluster.local_wakeups import LocalWakeups
from wopr.cluster.queued_wakeups import QueuedWakeups
from wopr.cluster.wakeups import WakeupSource
from wopr.store.port import Batch, Store, StoredRun
from wopr.store.postgres import jobs

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60
SOON_MS = 200

AT_ONCE = 4
BACKLOG = 2000
TENANTS = [TENANT, *(f"tenant-{number}" for number in range(7))]


def now() -> int:
    return time.time_ns() // 1_000_000


class Recorder:
    """A waker that records the advanced runs."""

    def __init__(self) -> None:
        self.advanced: Counter[str] = Counter()
        self._news = anyio.Event()
        self.tasks: anyio.abc.TaskGroup | None = None
        # An advance ends when so many have been active at the same time.
        self.waits_for = 0
        self.at_work = 0
        self.most_at_work = 0
        self._met = anyio.Event()

    def advance_soon(self, tenant: str, run_id: str) -> None:
        assert tenant in TENANTS
        self.advanced[run_id] += 1
        self._news.set()

    def is_busy(self, run_id: str) -> bool:
        return False

    async def advance_now(self, tenant: str, run_id: str, stored: StoredRun | None = None) -> None:
        assert stored is None or stored.row.run_id == run_id
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        if self.at_work >= self.waits_for:
            self._met.set()
        await self._met.wait()
        self.at_work -= 1
        self.advance_soon(tenant, run_id)

    def must_wait(self, tenant: str) -> bool:
        return False

    async def until(self, *run_ids: str) -> None:
        with anyio.fail_after(DEADLINE_SECONDS):
            while not all(self.advanced[run_id] for run_id in run_ids):
                self._news = anyio.Event()
                await self._news.wait()


Running = Callable[[], AbstractAsyncContextManager[tuple[WakeupSource, Recorder]]]


@pytest.fixture
def running(store: Store) -> Running:
    """Start the source of the store."""

    def source() -> WakeupSource:
        if store.peers is None:
            return LocalWakeups(store, now)
        return QueuedWakeups(
            store.peers, Leases("p1"), store, now, at_once=AT_ONCE, first_events=100
        )

    @asynccontextmanager
    async def run() -> AsyncIterator[tuple[WakeupSource, Recorder]]:
        recorder = Recorder()
        made = source()
        async with anyio.create_task_group() as tasks:
            made.start(tasks, recorder)
            yield made, recorder
            await made.stop()
            tasks.cancel_scope.cancel()

    return run


def due(run_id: str, in_ms: int, first: int = 0) -> Batch:
    """Return a batch of a run that is due so many milliseconds after it is written."""
    return batch(run_id, first, updated_at=now(), wake_at=now() + in_ms)


async def test_a_due_run_is_advanced(store: Store, running: Running) -> None:
    async with running() as (source, recorder):
        step = due("run-1", 0)
        await store.append(TENANT, [step])
        source.schedule(step.run)

        await recorder.until("run-1")


async def test_a_timer_fires(store: Store, running: Running) -> None:
    async with running() as (source, recorder):
        step = due("run-1", SOON_MS)
        await store.append(TENANT, [step])
        source.schedule(step.run)

        await recorder.until("run-1")


async def test_a_due_run_is_not_delayed_by_many_of_another_tenant(
    store: Store, running: Running
) -> None:
    first, other = TENANTS[:2]
    backlog = [due(f"run-{number}", -1000) for number in range(BACKLOG)]
    await store.append(first, backlog)
    await store.append(other, [due("theirs", -1)])
    async with running() as (_, recorder):
        await recorder.until("theirs")
        before = sum(recorder.advanced.values())

    assert before < BACKLOG // 2


async def test_runs_that_became_due_while_stopped_are_advanced_at_the_start(
    store: Store, running: Running
) -> None:
    await store.append(TENANT, [due("run-1", 0), due("run-2", 0)])

    async with running() as (_, recorder):
        await recorder.until("run-1", "run-2")


async def test_a_run_woken_by_another_one_is_advanced(store: Store, running: Running) -> None:
    await store.append(TENANT, [batch("parent", updated_at=now(), wake_at=now() + 3_600_000)])
    async with running() as (source, recorder):
        child = batch("child", updated_at=now(), wakes=("parent",))

        await store.append(TENANT, [child])
        source.wake(TENANT, "parent")

        await recorder.until("parent")


async def test_an_ended_run_is_not_advanced(store: Store, running: Running) -> None:
    await store.append(TENANT, [due("over", SOON_MS)])
    await store.append(TENANT, [ended("over", 1)])
    await store.append(TENANT, [due("later", 2 * SOON_MS)])

    async with running() as (_, recorder):
        await recorder.until("later")

    assert not recorder.advanced["over"]


async def test_due_runs_of_many_tenants_are_advanced_with_the_configured_concurrency(
    store: Store, running: Running
) -> None:
    if store.peers is None:
        pytest.skip("a process that has the store to itself has no such setting")
    for tenant in TENANTS:
        await store.append(tenant, [due(f"run of {tenant}", 1)])

    async with running() as (_, recorder):
        recorder.waits_for = AT_ONCE
        await recorder.until(*(f"run of {tenant}" for tenant in TENANTS))

    # More of them only where one takes long.
    assert recorder.most_at_work >= AT_ONCE


async def test_a_queue_worker_stopped_before_its_first_step_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.peers is None:
        pytest.skip("only a store that processes share has a queue")
    worker = store.peers.create_worker(Recorder().advance_now, 1)

    class StoppedAtOnce(Worker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            asyncio.get_running_loop().call_soon(worker.stop)

    monkeypatch.setattr(jobs, "Worker", StoppedAtOnce)
    with anyio.fail_after(DEADLINE_SECONDS):
        await worker.run()
