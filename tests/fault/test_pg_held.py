"""What a process does for the runs that it has: full or cut off, it still looks after them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psycopg
import pytest

from tests.fault.inprocess import (
    Bench,
    Gates,
    bench,
    eventually,
    gate_types,
    numbered,
    two_benches,
)
from tests.fault.rival import Rival
from tests.postgres.databases import Databases
from tests.wire.definitions import delay, node
from tests.wire.waiting import gate
from wopr.runtime.membership import Membership

pytestmark = pytest.mark.anyio

CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query IN ('LISTEN wopr', 'SELECT 1')
"""

HELD_UP = "UPDATE wopr.processes SET beat_at = beat_at - interval '1 minute'"
HOLD = "UPDATE wopr.runs SET holder = %s WHERE run_id = %s"


@pytest.fixture
async def full(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    """A process that has room for one run."""
    with databases.new() as url:
        types = gate_types(gates)
        async with bench(tmp_path, *types, new_id=numbered(), url=url, max_held_runs=1) as running:
            yield running


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    with databases.new() as url:
        async with bench(tmp_path, *gate_types(gates), new_id=numbered(), url=url) as running:
            yield running


async def test_a_process_without_room_wakes_the_run_that_it_has(full: Bench, gates: Gates) -> None:
    run_id = await full.create(
        await full.register([node("wait", "test.gate"), delay("sleep", 50)], edges=[])
    )
    await gates.until_reached("wait")

    full.clock.now += 50

    await full.until_logged(run_id, "node.completed")
    assert not gates.opened["wait"].is_set()


async def test_a_run_that_hangs_in_a_process_without_room_runs_out_of_time(
    full: Bench, gates: Gates
) -> None:
    run_id = await full.create(await full.register([node("wait", "test.gate")]), runTimeoutMs=1000)
    await gates.until_reached("wait")

    full.clock.now += 2000

    await full.until(run_id, "failed")


async def test_a_node_is_stopped_whose_end_was_told_while_nobody_listened(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    assert ours.host.advancer.holding.count == 1

    with psycopg.connect(str(ours.database), autocommit=True) as server:

        async def is_cut_off() -> bool:
            # It may not have come to listening yet.
            return bool(server.execute(CUT_OFF).fetchall())

        await eventually(is_cut_off)
        Rival(ours.database).append(run_id, "run.cancelled")

    async def is_stopped() -> bool:
        return ours.host.advancer.holding.count == 0

    await eventually(is_stopped)


async def test_a_run_that_a_process_has_without_need_is_given_back(ours: Bench) -> None:
    """As after an append whose answer was lost, and a command that ended what it had begun."""
    run_id = await ours.create(await ours.register([gate("person")]))
    with psycopg.connect(str(ours.database), autocommit=True) as server:
        server.execute(HOLD, (ours.host.advancer.holding.process, run_id))

    await ours.wake(run_id)

    assert (await ours.row(run_id)).holder is None


def hold_all_up(ours: Bench) -> None:
    """Let a minute have passed since any process of this database gave a sign of life."""
    with psycopg.connect(str(ours.database), autocommit=True) as server:
        server.execute(HELD_UP)


def held_up(ours: Bench) -> Membership:
    """A process for which a minute has passed since then."""
    assert ours.host.sharing is not None
    ours.host.sharing.membership._beat_at -= 60
    return ours.host.sharing.membership


async def test_a_process_that_was_held_up_does_not_take_itself_for_dead(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")

    hold_all_up(ours)
    await held_up(ours)._look(is_counting=False)

    assert (await ours.row(run_id)).holder == ours.host.advancer.holding.process


async def test_a_process_that_was_held_up_lets_others_speak_before_it_takes_them_for_dead(
    tmp_path: Path, gates: Gates, databases: Databases
) -> None:
    with databases.new() as url:
        async with (
            two_benches(tmp_path, gates, url) as (one, two),
            anyio.create_task_group() as tasks,
        ):
            run_id = await two.create(await two.register([node("wait", "test.gate")]))
            await gates.until_reached("wait")

            membership = held_up(one)
            await membership._beat(tasks)
            hold_all_up(one)
            await membership._look(is_counting=False)

            assert (await one.row(run_id)).holder == two.host.advancer.holding.process
            tasks.cancel_scope.cancel()
