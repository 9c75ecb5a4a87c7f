"""Shares: places of each tenant."""

from __future__ import annotations

import anyio
import pytest

from wopr.runtime.shares import Shares

pytestmark = pytest.mark.anyio


async def test_a_tenant_waits_for_its_own_places_only() -> None:
    shares = Shares(2)
    async with shares.place("a"), shares.place("a"):
        with anyio.move_on_after(0.02) as waited:
            await shares.take("a")
        async with shares.place("b"):
            pass

    assert waited.cancelled_caught


async def test_a_place_that_is_given_back_goes_to_the_task_that_waits() -> None:
    shares = Shares(1)
    got: list[int] = []

    async def wait(number: int) -> None:
        async with shares.place("a"):
            got.append(number)

    async with anyio.create_task_group() as tasks:
        await shares.take("a")
        tasks.start_soon(wait, 1)
        tasks.start_soon(wait, 2)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        shares.give_back("a")

    assert got == [1, 2]


async def test_a_task_that_stops_waiting_takes_no_place() -> None:
    shares = Shares(1)
    async with shares.place("a"):
        with anyio.move_on_after(0.01):
            await shares.take("a")

    with anyio.fail_after(10):
        async with shares.place("a"):
            pass
