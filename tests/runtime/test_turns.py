from __future__ import annotations

from functools import partial

import anyio
import pytest

from wopr.runtime.turns import Turns

pytestmark = pytest.mark.anyio


def no_delay(tenant: str) -> float:
    return 0.0


def test_a_turn_that_is_free_is_taken_at_once() -> None:
    turns = Turns(no_delay, 2)
    began: list[str] = []

    turns.take("a", partial(began.append, "first"))
    turns.take("a", partial(began.append, "second"))

    assert began == ["first", "second"]


def test_waiting_tenants_get_turns_in_rotation_however_many_each_has_waiting() -> None:
    turns = Turns(no_delay, 1)
    began: list[str] = []
    for number in range(100):
        turns.take("a", partial(began.append, f"a{number}"))
    turns.take("b", partial(began.append, "b0"))
    turns.take("c", partial(began.append, "c0"))
    turns.take("b", partial(began.append, "b1"))

    for _ in range(6):
        turns.give_back(began[-1][0])

    assert began == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


def test_a_turn_that_is_given_back_when_none_waits_is_free_again() -> None:
    turns = Turns(no_delay, 1)
    began: list[str] = []
    turns.take("a", partial(began.append, "first"))
    turns.give_back("a")

    turns.take("b", partial(began.append, "second"))

    assert began == ["first", "second"]
    assert turns.waiting == 0


async def test_a_block_waits_for_its_turn() -> None:
    turns = Turns(no_delay, 1)
    order: list[str] = []

    async def work(tenant: str, name: str) -> None:
        async with turns.turn(tenant):
            order.append(name)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, "a", f"a{number}")
        tasks.start_soon(work, "b", "b0")

    assert order == ["a0", "a1", "b0", "a2"]


async def test_a_block_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    turns = Turns(no_delay, 1)
    order: list[str] = []

    async def work(tenant: str) -> None:
        async with turns.turn(tenant):
            order.append(tenant)

    async with turns.turn("a"), anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def cancelled() -> None:
            with scope:
                await work("b")

        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    await work("c")

    assert order == ["c"]
    assert turns.waiting == 0


async def test_a_turn_that_came_with_the_cancellation_is_given_back() -> None:
    turns = Turns(no_delay, 1)
    scope = anyio.CancelScope()
    order: list[str] = []

    async def cancelled() -> None:
        with scope:
            async with turns.turn("b"):
                order.append("b")

    async with anyio.create_task_group() as tasks, turns.turn("a"):
        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    async with turns.turn("c"):
        order.append("c")

    assert order == ["c"]


async def test_a_tenant_over_its_rate_waits_and_the_others_do_not() -> None:
    delays = {"a": 0.01}
    turns = Turns(lambda tenant: delays.get(tenant, 0.0), 1)
    order: list[str] = []

    async def work(tenant: str) -> None:
        async with turns.turn(tenant):
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
    assert turns.waiting == 0


async def test_a_delayed_tenant_gets_its_turn_soon_after_its_quota_was_raised() -> None:
    delays = {"a": 3600.0}
    turns, granted = Turns(lambda tenant: delays[tenant], 1), anyio.Event()

    turns.take("a", granted.set)
    was_delayed = not granted.is_set()
    delays["a"] = 0.0

    with anyio.fail_after(30):
        await granted.wait()
    assert was_delayed


async def test_a_paused_turn_is_left_to_others_and_goes_on_without_a_wait() -> None:
    turns = Turns(no_delay, 1)
    order: list[str] = []
    is_checked, may_end = anyio.Event(), anyio.Event()

    async def checks() -> None:
        async with turns.turn("a"):
            with turns.paused():
                await is_checked.wait()
            order.append("a")

    async def works() -> None:
        async with turns.turn("b"):
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
    assert not turns.must_wait("a")


async def test_a_tenant_has_no_more_advances_in_progress_than_there_are_turns() -> None:
    turns = Turns(no_delay, 2)
    order: list[str] = []
    is_checked = anyio.Event()

    async def checks(name: str) -> None:
        async with turns.turn("a"):
            order.append(name)
            with turns.paused():
                await is_checked.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(checks, f"a{number}")
        await anyio.wait_all_tasks_blocked()
        in_progress = list(order)
        assert turns.must_wait("a")
        turns.take("b", partial(order.append, "b"))
        is_checked.set()

    assert in_progress == ["a0", "a1"]
    assert order == ["a0", "a1", "b", "a2"]
    assert turns.waiting == 0


async def test_a_block_that_has_no_turn_pauses_none() -> None:
    turns = Turns(no_delay, 1)
    began: list[str] = []
    turns.take("a", partial(began.append, "a0"))
    turns.take("a", partial(began.append, "a1"))

    with turns.paused():
        pass

    assert began == ["a0"]


async def test_a_turn_is_paused_while_its_holder_waits_for_a_lock() -> None:
    turns, lock = Turns(no_delay, 1), anyio.Lock()
    order: list[str] = []

    async def writes() -> None:
        async with turns.turn("a"), turns.locked(lock):
            order.append("a")

    async with anyio.create_task_group() as tasks, lock:
        tasks.start_soon(writes)
        await anyio.wait_all_tasks_blocked()
        async with turns.turn("b"):
            order.append("b")

    assert order == ["b", "a"]
