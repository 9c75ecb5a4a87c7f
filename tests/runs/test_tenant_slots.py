"""TenantSlots: limits per tenant."""

from __future__ import annotations

import anyio
import pytest

from wopr.process.tenant_slots import TenantSlots

pytestmark = pytest.mark.anyio


async def test_a_tenant_waits_for_its_own_places_only() -> None:
    slots = TenantSlots(2)
    async with slots.slot("a"), slots.slot("a"):
        with anyio.move_on_after(0.02) as waited:
            await slots.acquire("a")
        async with slots.slot("b"):
            pass

    assert waited.cancelled_caught


async def test_a_released_place_goes_to_the_waiting_task() -> None:
    slots = TenantSlots(1)
    got: list[int] = []

    async def wait(number: int) -> None:
        async with slots.slot("a"):
            got.append(number)

    async with anyio.create_task_group() as tasks:
        await slots.acquire("a")
        tasks.start_soon(wait, 1)
        tasks.start_soon(wait, 2)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        slots.release("a")

    assert got == [1, 2]


async def test_a_cancelled_task_takes_no_place() -> None:
    slots = TenantSlots(1)
    async with slots.slot("a"):
        with anyio.move_on_after(0.01):
            await slots.acquire("a")

    with anyio.fail_after(10):
        async with slots.slot("a"):
            pass
