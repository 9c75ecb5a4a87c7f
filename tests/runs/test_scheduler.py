from __future__ import annotations

from functools import partial

import anyio
import pytest

from wopr.cluster.scheduler import FairScheduler

pytestmark = pytest.mark.anyio


def no_delay(tenant: str) -> float:
    return 0.0


def test_a_free_slot_is_acquired_at_once() -> None:
    scheduler = FairScheduler(no_delay, 2)
    began: list[str] = []

    scheduler.submit("a", partial(began.append, "first"))
    scheduler.submit("a", partial(began.append, "second"))

    assert began == ["first", "second"]


def test_waiting_tenants_get_slots_in_rotation_at_any_queue_length() -> None:
    scheduler = FairScheduler(no_delay, 1)
    began: list[str] = []
    for number in range(100):
        scheduler.submit("a", partial(began.append, f"a{number}"))
    scheduler.submit("b", partial(began.append, "b0"))
    scheduler.submit("c", partial(began.append, "c0"))
    scheduler.submit("b", partial(began.append, "b1"))

    for _ in range(6):
        scheduler.release(began[-1][0])

    assert began == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


def test_a_released_slot_is_free_when_no_block_waits() -> None:
    scheduler = FairScheduler(no_delay, 1)
    began: list[str] = []
    scheduler.submit("a", partial(began.append, "first"))
    scheduler.release("a")

    scheduler.submit("b", partial(began.append, "second"))

    assert began == ["first", "second"]
    assert scheduler.waiting == 0


async def test_a_block_waits_for_its_slot() -> None:
    scheduler = FairScheduler(no_delay, 1)
    order: list[str] = []

    async def work(tenant: str, name: str) -> None:
        async with scheduler.slot(tenant):
            order.append(name)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, "a", f"a{number}")
        tasks.start_soon(work, "b", "b0")

    assert order == ["a0", "a1", "b0", "a2"]


async def test_a_block_cancelled_while_it_waits_takes_no_slot() -> None:
    scheduler = FairScheduler(no_delay, 1)
    order: list[str] = []

    async def work(tenant: str) -> None:
        async with scheduler.slot(tenant):
            order.append(tenant)

    async with scheduler.slot("a"), anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def cancelled() -> None:
            with scope:
                await work("b")

        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    await work("c")

    assert order == ["c"]
    assert scheduler.waiting == 0


async def test_a_slot_acquired_together_with_a_cancellation_is_released() -> None:
    scheduler = FairScheduler(no_delay, 1)
    scope = anyio.CancelScope()
    order: list[str] = []

    async def cancelled() -> None:
        with scope:
            async with scheduler.slot("b"):
                order.append("b")

    async with anyio.create_task_group() as tasks, scheduler.slot("a"):
        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    async with scheduler.slot("c"):
        order.append("c")

    assert order == ["c"]


async def test_a_tenant_over_its_rate_waits_and_the_others_do_not() -> None:
    delays = {"a": 0.01}
    scheduler = FairScheduler(lambda tenant: delays.get(tenant, 0.0), 1)
    order: list[str] = []

    async def work(tenant: str) -> None:
        async with scheduler.slot(tenant):
            order.append(tenant)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, "a")
        tasks.start_soon(work, "a")
        tasks.start_soon(work, "b")
        await anyio.wait_all_tasks_blocked()
        is_first = list(order)
        delays.clear()

    assert is_first == ["b"]
    assert order == ["b", "a", "a"]
    assert scheduler.waiting == 0


async def test_a_delayed_tenant_gets_its_slot_soon_after_its_quota_was_raised() -> None:
    delays = {"a": 3600.0}
    scheduler, granted = FairScheduler(lambda tenant: delays[tenant], 1), anyio.Event()

    scheduler.submit("a", granted.set)
    was_delayed = not granted.is_set()
    delays["a"] = 0.0

    with anyio.fail_after(30):
        await granted.wait()
    assert was_delayed


async def test_a_lent_slot_is_used_by_others_and_reacquired_without_a_wait() -> None:
    scheduler = FairScheduler(no_delay, 1)
    order: list[str] = []
    is_checked, may_end = anyio.Event(), anyio.Event()

    async def checks() -> None:
        async with scheduler.slot("a"):
            with scheduler.without_slot():
                await is_checked.wait()
            order.append("a")

    async def works() -> None:
        async with scheduler.slot("b"):
            order.append("b")
            await may_end.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(checks)
        tasks.start_soon(works)
        await anyio.wait_all_tasks_blocked()
        is_checked.set()
        await anyio.wait_all_tasks_blocked()
        order.append("b ends")
        may_end.set()

    assert order == ["b", "a", "b ends"]
    assert not scheduler.must_wait("a")


async def test_a_tenant_has_no_more_advances_in_progress_than_there_are_slots() -> None:
    scheduler = FairScheduler(no_delay, 2)
    order: list[str] = []
    is_checked = anyio.Event()

    async def checks(name: str) -> None:
        async with scheduler.slot("a"):
            order.append(name)
            with scheduler.without_slot():
                await is_checked.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(checks, f"a{number}")
        await anyio.wait_all_tasks_blocked()
        in_progress = list(order)
        assert scheduler.must_wait("a")
        scheduler.submit("b", partial(order.append, "b"))
        is_checked.set()

    assert in_progress == ["a0", "a1"]
    assert order == ["a0", "a1", "b", "a2"]
    assert scheduler.waiting == 0


async def test_a_block_without_a_slot_lends_none() -> None:
    scheduler = FairScheduler(no_delay, 1)
    began: list[str] = []
    scheduler.submit("a", partial(began.append, "a0"))
    scheduler.submit("a", partial(began.append, "a1"))

    with scheduler.without_slot():
        pass

    assert began == ["a0"]


async def test_a_slot_is_lent_while_its_holder_waits_for_a_lock() -> None:
    scheduler, lock = FairScheduler(no_delay, 1), anyio.Lock()
    order: list[str] = []

    async def writes() -> None:
        async with scheduler.slot("a"), scheduler.hold_lock(lock):
            order.append("a")

    async with anyio.create_task_group() as tasks, lock:
        tasks.start_soon(writes)
        await anyio.wait_all_tasks_blocked()
        async with scheduler.slot("b"):
            order.append("b")

    assert order == ["b", "a"]
