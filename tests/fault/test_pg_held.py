"""What a process does for the runs that it has: full or cut off, it still looks after them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.fault.inprocess import Bench, Gates, bench, eventually, gate_types, numbered
from tests.fault.rival import Rival
from tests.postgres.databases import Databases
from tests.wire.definitions import delay, node
from tests.wire.waiting import gate

pytestmark = pytest.mark.anyio

CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN wopr%'
"""

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
        assert server.execute(CUT_OFF).fetchall()
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
