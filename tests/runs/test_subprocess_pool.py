"""Work in subprocesses: deadlines, slots, memory, and clean-up."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from tests.runs.subprocess_calls import environment, fill, process_id, sleep
from tests.support.schemas import tree
from wopr.process.subprocess_pool import PoolLimits, SubprocessPool
from wopr.process.tenant_slots import FairSlots
from wopr.protocol.documents import Json
from wopr.protocol.errors import Unavailable
from wopr.protocol.json_schema.validation import UserSchema
from wopr.protocol.offloading import WorkFailed

pytestmark = pytest.mark.anyio
LONG = 600


@pytest.fixture
async def pool() -> AsyncIterator[SubprocessPool]:
    pool = SubprocessPool(PoolLimits(size=2, deadline_seconds=2, wait_seconds=30, memory_mib=512))
    yield pool
    await pool.aclose()


async def test_a_subprocess_is_kept_for_the_next_call(pool: SubprocessPool) -> None:
    assert await pool.call("a", process_id) == await pool.call("a", process_id) != os.getpid()


async def test_a_call_is_stopped_at_its_deadline_and_the_next_call_works(
    pool: SubprocessPool,
) -> None:
    first = await pool.call("a", process_id)

    with pytest.raises(WorkFailed, match="takes longer than 2 s"):
        await pool.call("a", sleep, LONG)

    assert await pool.call("a", process_id) != first


async def test_a_call_that_needs_too_much_memory_fails(pool: SubprocessPool) -> None:
    with pytest.raises(WorkFailed, match="too much memory"):
        await pool.call("a", fill, 2000)


async def test_a_subprocess_gets_no_environment_variables(
    pool: SubprocessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WOPR_API_KEYS", "secret")

    found = await pool.call("a", environment)

    assert found.keys() <= {"PYTHONPATH", "LC_ALL", "LC_CTYPE"}


async def test_a_tenant_with_long_work_leaves_a_subprocess_to_others(pool: SubprocessPool) -> None:
    answered: list[str] = []

    async def long_work() -> None:
        with pytest.raises(WorkFailed):
            await pool.call("mallory", sleep, LONG)
        answered.append("mallory")

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(long_work)
        await anyio.lowlevel.checkpoint()
        await pool.call("alice", process_id)
        answered.append("alice")

    assert answered.index("alice") < 2
    assert answered.count("mallory") == 3


async def test_a_cancelled_call_frees_its_place(pool: SubprocessPool) -> None:
    await pool.call("a", process_id)

    for _ in range(3):
        with anyio.move_on_after(0.05):
            await pool.call("a", sleep, LONG)

    assert await pool.call("a", process_id)


async def test_threaded_checks_finish_before_the_code_continues(pool: SubprocessPool) -> None:
    schema = UserSchema(tree())

    def work() -> list[int]:
        values: list[Json] = [{"size": 1}, {"size": "x"}, {"parts": [{"size": "y"}]}]
        return [len(schema.violations(value)) for value in values]

    assert await pool.run("a", work) == [0, 1, 1]


async def test_subprocesses_end_with_the_pool() -> None:
    pool = SubprocessPool(PoolLimits())
    pid = await pool.call("a", process_id)

    await pool.aclose()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_call_with_too_many_others_waiting_is_refused_with_a_retry_time() -> None:
    slots = FairSlots(1, max_waiting=1)

    async with anyio.create_task_group() as tasks, slots.slot("a", 1):
        tasks.start_soon(_wait_for_turn, slots)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        with pytest.raises(Unavailable, match="1 checks of this tenant are waiting") as refused:
            await _wait_for_turn(slots)
        assert refused.value.retry_after == 2
        tasks.cancel_scope.cancel()


async def _wait_for_turn(slots: FairSlots) -> None:
    async with slots.slot("a", LONG):
        pass


async def test_a_call_without_a_free_place_in_time_is_refused_with_a_retry_time() -> None:
    slots = FairSlots(1)

    async with slots.slot("a", 1):
        with pytest.raises(Unavailable, match="could not start within 0 s"):
            async with slots.slot("b", 0):
                pass


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
async def test_a_call_whose_subprocess_cannot_start_is_refused_with_a_retry_time(
    pool: SubprocessPool, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr("sys.executable", program)

    with pytest.raises(Unavailable, match="could not start a subprocess"):
        await pool.call("a", process_id)
