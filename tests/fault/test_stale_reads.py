"""A run loaded while another task finishes it is not advanced from its old state."""

from __future__ import annotations

import pytest

from tests.support.definitions import delay, edge, node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates

pytestmark = pytest.mark.anyio


async def test_a_late_advance_sees_that_the_run_has_ended(
    ours: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")
    advancer = ours.host.advancer
    stale = await advancer.journal.load(TENANT, run_id)
    gates.open("gate")
    await ours.until(run_id, "completed")

    async def is_let_go() -> bool:
        # The store may know its end a moment before the host's memory does.
        return run_id not in advancer.active.runs

    await eventually_async(is_let_go)

    async def loaded(tenant: str, name: str) -> object:
        return stale

    monkeypatch.setattr(advancer.journal, "load", loaded)
    before = await ours.log(run_id)
    await advancer.advance(TENANT, run_id)

    assert stale is not None
    assert stale.state.status == "completed"
    assert run_id not in advancer.active.runs
    assert await ours.log(run_id) == before


async def test_a_trigger_read_before_another_advance_executes_nothing_twice(
    ours: Bench, gates: Gates
) -> None:
    nodes = [delay("sleep", 60_000), node("gate", "test.gate")]
    run_id = await ours.create(await ours.register(nodes, edges=[edge("sleep", "gate")]))
    advancer = ours.host.advancer
    [stored] = await advancer.journal.store.load_runs(TENANT, [run_id], 10)
    ours.clock.now += 60_000
    await ours.wake(run_id)
    await gates.until_reached("gate")
    gates.open("gate")
    await ours.until(run_id, "completed")
    before = await ours.log(run_id)

    await advancer.advance(TENANT, run_id, stored)

    assert run_id not in advancer.active.runs
    assert await ours.log(run_id) == before
    assert [event.type for event in before].count("node.started") == 2
