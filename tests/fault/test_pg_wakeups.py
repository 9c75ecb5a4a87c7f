"""A wake-up is kept until a process has acted on it, because that process may die at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.second_writer import SecondWriter
from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import Bench, Gates, bench, gate_types, numbered
from tests.support.postgres.databases import Databases
from wopr.runs.append import EventBatch

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    with databases.lent() as url:
        async with bench(tmp_path, *gate_types(gates), new_id=numbered(), url=url) as running:
            yield running


@pytest.fixture
def dying(ours: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a process whose in-memory wake-ups are disabled."""
    monkeypatch.setattr(ours.host.advancer.wakeups, "advance_soon", lambda *_: None)


async def parent_of(ours: Bench, child: str, type_id: str) -> str:
    """Start a run whose one node has a child with one node."""
    config = {"workflowId": await ours.register([node("wait", child)])}
    return await ours.create(await ours.register([node("call", type_id, config=config)]))


async def is_due(ours: Bench, run_id: str) -> bool:
    row = await ours.row(run_id)
    return row.wake_at is not None and row.wake_at <= ours.clock.now


async def note(ours: Bench, run_id: str) -> None:
    """Append to a run like an external command."""
    run = await ours.loaded(run_id)

    def change(batch: EventBatch) -> None:
        batch.add("log.appended", {"level": "info", "message": "noted"})

    async with run.lock:
        await ours.host.advancer.transact(run, change)


async def test_a_command_between_a_child_s_end_and_its_parent_s_advance_keeps_the_wake_up(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "test.gate", "core.subWorkflow")
    await gates.until_reached("wait")
    await ours.host.advancer.wakeups.source.stop()
    ours.clock.now += 5
    gates.open("wait")

    async def is_woken() -> bool:
        return await is_due(ours, run_id)

    await eventually_async(is_woken)
    await note(ours, run_id)

    assert await is_due(ours, run_id)
    await ours.wake(run_id)
    await ours.until(run_id, "completed")


@pytest.mark.usefixtures("dying")
async def test_a_node_that_ends_after_another_writer_keeps_a_wake_up_that_it_did_not_read(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "core.noop", "test.slow_parent")
    await gates.until_reached("call")
    await ours.until(gates.children[0], "completed")
    await ours.host.advancer.wakeups.source.stop()
    SecondWriter(ours.database).append(run_id)

    gates.open("call")

    async def is_let_go() -> bool:
        return (await ours.row(run_id)).holder is None

    await eventually_async(is_let_go)
    # The queue may have delivered the wake-up before it was stopped.
    assert await is_due(ours, run_id) or (await ours.row(run_id)).status == "completed"


@pytest.mark.usefixtures("dying")
async def test_a_parent_woken_during_its_call_is_not_released_before_the_next_call(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "core.noop", "test.slow_parent")
    await gates.until_reached("call")
    await ours.until(gates.children[0], "completed")
    await ours.wake(run_id)
    assert not await is_due(ours, run_id)

    gates.open("call")

    await ours.until(run_id, "completed")
