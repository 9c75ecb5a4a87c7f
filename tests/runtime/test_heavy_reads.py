from __future__ import annotations

import anyio
import pytest

from wopr.protocol.errors import Unavailable
from wopr.runtime.heavy_reads import MOST_WAITING, HeavyReads

pytestmark = pytest.mark.anyio


async def _read(reads: HeavyReads, tenant: str, begun: list[str], done: anyio.Event) -> None:
    async with reads.turn(tenant):
        begun.append(tenant)
        await done.wait()


async def test_one_tenant_has_one_turn_and_others_take_the_rest() -> None:
    reads, begun, done = HeavyReads(2), list[str](), anyio.Event()
    at_once: list[str] = []

    async with anyio.create_task_group() as tasks:
        for tenant in ("acme", "acme", "globex", "initech"):
            tasks.start_soon(_read, reads, tenant, begun, done)
        await anyio.wait_all_tasks_blocked()
        at_once += begun
        done.set()

    assert at_once == ["acme", "globex"]
    assert sorted(begun) == ["acme", "acme", "globex", "initech"]


async def test_a_tenant_with_enough_waiting_reads_is_refused_and_others_are_not() -> None:
    reads, begun, done = HeavyReads(2), list[str](), anyio.Event()

    async with anyio.create_task_group() as tasks:
        for _ in range(MOST_WAITING + 1):
            tasks.start_soon(_read, reads, "acme", begun, done)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unavailable, match="wait for their turn"):
            async with reads.turn("acme"):
                pass
        async with reads.turn("globex"):
            pass
        done.set()

    assert len(begun) == MOST_WAITING + 1


async def test_a_read_that_fails_or_is_cancelled_gives_its_turn_back() -> None:
    reads, begun, done = HeavyReads(1), list[str](), anyio.Event()

    with pytest.raises(ValueError, match="broken"):
        async with reads.turn("acme"):
            raise ValueError("broken")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, reads, "acme", begun, done)
        tasks.start_soon(_read, reads, "globex", begun, done)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with reads.turn("acme"):
        begun.append("again")

    assert begun[-1] == "again"
