"""The time of a fork: its own, or the record's."""

from __future__ import annotations

from itertools import product

import pytest

from tests.fault.fork_edges.outside import MODES
from tests.fault.forking import ended, fork, forked, log_content
from tests.support.definitions import delay, node
from tests.support.in_process import TENANT, Bench, Clock, Gates

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000


async def test_a_branch_of_an_old_run_has_its_own_time_limit(ours: Bench, clock: Clock) -> None:
    workflow = await ours.register([node("a"), delay("wait", 10), node("b")])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    clock.now += 20
    await ours.wake(source)
    await ours.until(source, "completed")
    clock.now += DAY_MS

    branch = await fork(ours, source, "branch", 3)
    await ours.until_logged(branch, "node.started", 2)
    clock.now += 20
    await ours.wake(branch)
    await ours.until(branch, "completed", "failed")

    assert (await ours.row(branch)).status == "completed"


async def test_a_replay_beyond_the_record_uses_the_time_of_the_record(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([delay("wait", 1000), node("b")])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    await ours.host.commands.cancel(TENANT, source, "")
    clock.now += DAY_MS

    first = await forked(ours, source)
    clock.now += DAY_MS
    second = await forked(ours, source)

    assert (await ours.row(first)).status == "completed"
    assert await log_content(ours, first) == await log_content(ours, second)
    times = [event.timestamp for event in await ours.log(first)]
    assert times == sorted(times)


async def test_a_node_in_flight_at_the_fork_point_starts_again(
    ours: Bench, gates: Gates, clock: Clock
) -> None:
    workflow = await ours.register([node("gate", "test.gate", settings={"timeout": 60_000})])
    source = await ours.create(workflow)
    await gates.until_reached("gate")
    gates.open("gate")
    await ours.until(source, "completed")
    clock.now += DAY_MS

    branch = await forked(ours, source, "branch", 2)

    assert (await ours.row(branch)).status == "completed"
    assert (await ours.types(branch)).count("node.started") == 2


async def test_a_fork_of_a_branch_keeps_the_branch_s_changes(ours: Bench) -> None:
    limited = await ours.register([node("a"), node("b")])
    source = await ended(ours, limited)
    branch = await fork(ours, source, "branch", 3, configurable={"recursionLimit": 7}, tags=["x"])
    await ours.until(branch, "completed")

    for mode, start in product(MODES, (0, 2)):
        again = await forked(ours, branch, mode, start)
        state = (await ours.loaded(again)).state
        assert (state.configurable, state.tags) == ({"recursionLimit": 7}, ("x",))
        assert (await ours.row(again)).tags == ("x",)


@pytest.mark.parametrize("start", [0, 4])
async def test_a_replay_of_a_branch_has_the_branch_s_time(
    ours: Bench, clock: Clock, start: int
) -> None:
    workflow = await ours.register([node("a"), delay("wait", 1000), node("b"), delay("more", 10)])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    clock.now += 1500
    await ours.wake(source)
    clock.now += 20
    await ours.wake(source)
    await ours.until(source, "completed")
    clock.now += DAY_MS
    branch = await fork(ours, source, "branch", 6)
    await ours.until_logged(branch, "node.started", 4)
    clock.now += 20
    await ours.wake(branch)
    await ours.until(branch, "completed")
    clock.now += DAY_MS

    replay = await forked(ours, branch, from_seq=start)

    assert await log_content(ours, replay) == await log_content(ours, branch)


async def test_retention_of_a_fork_counts_from_its_own_end(ours: Bench, clock: Clock) -> None:
    workflow = await ours.register([node("a")])
    source = await ended(ours, workflow)
    clock.now += DAY_MS

    replay = await forked(ours, source)

    assert (await ours.row(replay)).ended_at == clock.now
    assert (await ours.row(replay)).created_at == clock.now
