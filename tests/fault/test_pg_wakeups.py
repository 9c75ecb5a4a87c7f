"""A wake-up holds until somebody has acted on it: who only knows of it may die at any moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.inprocess import Bench, Gates, bench, eventually, gate_types, numbered
from tests.fault.rival import Rival
from tests.postgres.databases import Databases
from tests.wire.definitions import node
from wopr.runtime.appender import Burst

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    with databases.new() as url:
        async with bench(tmp_path, *gate_types(gates), new_id=numbered(), url=url) as running:
            yield running


@pytest.fixture
def dying(ours: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does no more of what it has only in mind."""
    monkeypatch.setattr(ours.host.advancer.wakeups, "soon", lambda *_: None)


async def parent_of(ours: Bench, child: str, type_id: str) -> str:
    """Start a run whose one node has a child, itself of one node."""
    config = {"workflowId": await ours.register([node("wait", child)])}
    return await ours.create(await ours.register([node("call", type_id, config=config)]))


async def is_due(ours: Bench, run_id: str) -> bool:
    row = await ours.row(run_id)
    return row.wake_at is not None and row.wake_at <= ours.clock.now


async def note(ours: Bench, run_id: str) -> None:
    """Append to a run as any command does that comes from outside."""
    run = await ours.loaded(run_id)

    def change(burst: Burst) -> None:
        burst.add("log.appended", {"level": "info", "message": "noted"})

    async with run.lock:
        await ours.host.advancer.transact(run, change)


async def test_a_command_between_a_childs_end_and_its_parents_advance_keeps_the_wake_up(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "test.gate", "core.subWorkflow")
    await gates.until_reached("wait")
    await ours.host.advancer.wakeups.source.stop()
    ours.clock.now += 5
    gates.open("wait")

    async def is_woken() -> bool:
        return await is_due(ours, run_id)

    await eventually(is_woken)
    await note(ours, run_id)

    assert await is_due(ours, run_id)
    await ours.wake(run_id)
    await ours.until(run_id, "completed")


@pytest.mark.usefixtures("dying")
async def test_a_node_that_ends_after_another_writer_keeps_a_wake_up_that_it_did_not_see(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "core.noop", "test.slow_parent")
    await gates.until_reached("call")
    await ours.until(gates.children[0], "completed")
    await ours.host.advancer.wakeups.source.stop()
    Rival(ours.database).append(run_id)

    gates.open("call")

    async def is_let_go() -> bool:
        return (await ours.row(run_id)).holder is None

    await eventually(is_let_go)
    # The queue may have brought the wake-up before it was stopped.
    assert await is_due(ours, run_id) or (await ours.row(run_id)).status == "completed"


@pytest.mark.usefixtures("dying")
async def test_a_parent_that_was_woken_during_its_call_is_not_let_go_before_the_next_one(
    ours: Bench, gates: Gates
) -> None:
    run_id = await parent_of(ours, "core.noop", "test.slow_parent")
    await gates.until_reached("call")
    await ours.until(gates.children[0], "completed")
    await ours.wake(run_id)
    assert not await is_due(ours, run_id)

    gates.open("call")

    await ours.until(run_id, "completed")
