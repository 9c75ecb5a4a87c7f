from __future__ import annotations

import anyio
import pytest

from wopr.process.tenant_slots import MAX_WAITING_READS, HeavyReads
from wopr.protocol.errors import Unavailable

pytestmark = pytest.mark.anyio


async def _read(reads: HeavyReads, tenant: str, begun: list[str], done: anyio.Event) -> None:
    async with reads.slot(tenant):
        begun.append(tenant)
        await done.wait()


async def test_one_tenant_has_one_slot_and_others_use_the_rest() -> None:
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


async def test_a_tenant_with_too_many_waiting_reads_is_refused_and_others_are_not() -> None:
    reads, begun, done = HeavyReads(2), list[str](), anyio.Event()

    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_WAITING_READS + 1):
            tasks.start_soon(_read, reads, "acme", begun, done)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unavailable, match="reads of large runs of this tenant are waiting"):
            async with reads.slot("acme"):
                pass
        async with reads.slot("globex"):
            pass
        done.set()

    assert len(begun) == MAX_WAITING_READS + 1


async def test_a_failed_or_cancelled_read_releases_its_slot() -> None:
    reads, begun, done = HeavyReads(1), list[str](), anyio.Event()

    with pytest.raises(ValueError, match="broken"):
        async with reads.slot("acme"):
            raise ValueError("broken")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, reads, "acme", begun, done)
        tasks.start_soon(_read, reads, "globex", begun, done)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with reads.slot("acme"):
        begun.append("again")

    assert begun[-1] == "again"
