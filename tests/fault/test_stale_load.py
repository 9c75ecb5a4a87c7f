"""A run that is loaded while another task finishes it is not worked on as it was."""

from __future__ import annotations

import pytest

from tests.fault.inprocess import TENANT, Bench, Gates, eventually
from tests.wire.definitions import delay, edge, node

pytestmark = pytest.mark.anyio


async def test_an_advance_that_comes_too_late_sees_that_the_run_has_ended(
    ours: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ours.create(await ours.register([node("gate", "test.gate")]))
    await gates.until_reached("gate")
    advancer = ours.host.advancer
    stale = await advancer.journal.load(TENANT, run_id)
    gates.open("gate")
    await ours.until(run_id, "completed")

    async def is_let_go() -> bool:
        # The store may know of its end a moment before the host's memory does.
        return run_id not in advancer.runs

    await eventually(is_let_go)

    async def loaded(tenant: str, name: str) -> object:
        return stale

    monkeypatch.setattr(advancer.journal, "load", loaded)
    before = await ours.log(run_id)
    await advancer.advance(TENANT, run_id)

    assert stale is not None
    assert stale.state.status == "completed"
    assert run_id not in advancer.runs
    assert await ours.log(run_id) == before


async def test_a_timer_that_was_read_before_another_advance_executes_nothing_twice(
    ours: Bench, gates: Gates
) -> None:
    nodes = [delay("sleep", 60_000), node("gate", "test.gate")]
    run_id = await ours.create(await ours.register(nodes, edges=[edge("sleep", "gate")]))
    advancer = ours.host.advancer
    [stored] = await advancer.journal.store.load(TENANT, [run_id], 10)
    ours.clock.now += 60_000
    await ours.wake(run_id)
    await gates.until_reached("gate")
    gates.open("gate")
    await ours.until(run_id, "completed")
    before = await ours.log(run_id)

    await advancer.advance(TENANT, run_id, stored)

    assert run_id not in advancer.runs
    assert await ours.log(run_id) == before
    assert [event.type for event in before].count("node.started") == 2
