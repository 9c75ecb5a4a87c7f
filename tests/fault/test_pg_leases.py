"""The runs that a process holds while it has no capacity or is disconnected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psycopg
import pytest

from tests.fault.second_writer import SecondWriter
from tests.support.definitions import delay, node
from tests.support.eventually import eventually_async
from tests.support.in_process import Bench, Gates, bench, gate_types, numbered, two_benches
from tests.support.interrupts import gate
from tests.support.postgres.databases import Databases
from wopr.cluster.membership import Membership

pytestmark = pytest.mark.anyio

CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query IN ('LISTEN wopr', 'SELECT 1')
"""

HELD_UP = "UPDATE wopr.processes SET beat_at = beat_at - interval '1 minute'"
HOLD = "UPDATE wopr.runs SET holder = %s WHERE run_id = %s"


@pytest.fixture
async def full(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    """Run a process with capacity for one run."""
    with databases.lent() as url:
        types = gate_types(gates)
        async with bench(tmp_path, *types, new_id=numbered(), url=url, max_held_runs=1) as running:
            yield running


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates, databases: Databases) -> AsyncIterator[Bench]:
    with databases.lent() as url:
        async with bench(tmp_path, *gate_types(gates), new_id=numbered(), url=url) as running:
            yield running


async def test_a_process_without_capacity_wakes_the_run_it_holds(full: Bench, gates: Gates) -> None:
    run_id = await full.create(
        await full.register([node("wait", "test.gate"), delay("sleep", 50)], edges=[])
    )
    await gates.until_reached("wait")

    full.clock.now += 50

    await full.until_logged(run_id, "node.completed")
    assert not gates.opened["wait"].is_set()


async def test_a_hanging_node_in_a_process_without_capacity_times_out(
    full: Bench, gates: Gates
) -> None:
    run_id = await full.create(await full.register([node("wait", "test.gate")]), runTimeoutMs=1000)
    await gates.until_reached("wait")

    full.clock.now += 2000

    await full.until(run_id, "failed")


async def test_a_node_is_stopped_when_the_notification_of_its_end_was_lost(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    assert ours.host.advancer.leases.count == 1

    with psycopg.connect(str(ours.database), autocommit=True) as server:

        async def is_cut_off() -> bool:
            # It may not have started to listen yet.
            return bool(server.execute(CUT_OFF).fetchall())

        await eventually_async(is_cut_off)
        SecondWriter(ours.database).append(run_id, "run.cancelled")

    async def is_stopped() -> bool:
        return ours.host.advancer.leases.count == 0

    await eventually_async(is_stopped)


async def test_an_unnecessarily_held_run_is_released(ours: Bench) -> None:
    """As after an append whose response was lost, and a command that ended the started work."""
    run_id = await ours.create(await ours.register([gate("person")]))
    with psycopg.connect(str(ours.database), autocommit=True) as server:
        server.execute(HOLD, (ours.host.advancer.leases.process, run_id))

    await ours.wake(run_id)

    assert (await ours.row(run_id)).holder is None


def hold_all_up(ours: Bench) -> None:
    """Let a minute pass since the last heartbeat of any process of this database."""
    with psycopg.connect(str(ours.database), autocommit=True) as server:
        server.execute(HELD_UP)


def held_up(ours: Bench) -> Membership:
    """Return the membership of a process for which a minute has passed since then."""
    assert ours.host.cluster is not None
    ours.host.cluster.membership._heartbeat_at -= 60
    return ours.host.cluster.membership


async def test_a_delayed_process_does_not_consider_itself_dead(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")

    hold_all_up(ours)
    await held_up(ours)._rescue(is_comparing=False)

    assert (await ours.row(run_id)).holder == ours.host.advancer.leases.process


async def test_a_delayed_process_lets_others_send_heartbeats_before_it_considers_them_dead(
    tmp_path: Path, gates: Gates, databases: Databases
) -> None:
    with databases.lent() as url:
        async with (
            two_benches(tmp_path, gates, url) as (one, two),
            anyio.create_task_group() as tasks,
        ):
            run_id = await two.create(await two.register([node("wait", "test.gate")]))
            await gates.until_reached("wait")

            membership = held_up(one)
            await membership._send_heartbeat(tasks)
            hold_all_up(one)
            await membership._rescue(is_comparing=False)

            assert (await one.row(run_id)).holder == two.host.advancer.leases.process
            tasks.cancel_scope.cancel()
