"""Large runs wait while there is no memory for them, and go on by themselves when there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.inprocess import TENANT, Bench, Gates, bench, eventually, gate_types, numbered
from tests.postgres.databases import Databases
from tests.wire.definitions import node, variable
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

# One run of these inputs has more than half of the memory.
MEMORY = 2 * 1024 * 1024
LARGE: JsonObject = {"v": [[]] * 10_000}


@pytest.fixture(params=["sqlite", "postgres"])
async def running(
    request: pytest.FixtureRequest, tmp_path: Path, gates: Gates, databases: Databases
) -> AsyncIterator[Bench]:
    """A host with memory for one large run of a tenant."""
    types = gate_types(gates)
    if request.param == "sqlite":
        async with bench(tmp_path, *types, new_id=numbered(), max_held_bytes=MEMORY) as host:
            yield host
        return
    with databases.new() as url:
        async with bench(
            tmp_path, *types, new_id=numbered(), url=url, max_held_bytes=MEMORY
        ) as host:
            yield host


async def start(host: Bench, gate: str, inputs: JsonObject = LARGE) -> str:
    definition = await host.register([node(gate, "test.gate")], variables=[variable("v", "array")])
    return await host.create(definition, inputs)


async def until_free(host: Bench) -> None:
    async def is_free() -> bool:
        return host.host.advancer.holding.memory.count == 0

    await eventually(is_free)


async def test_a_large_run_waits_for_memory_and_goes_on_when_there_is_some(
    running: Bench, gates: Gates
) -> None:
    first = await start(running, "first")
    await gates.until_reached("first")

    second, third = await start(running, "second"), await start(running, "third")
    await running.wake(second)
    small = await start(running, "small", {"v": []})
    await gates.until_reached("small")

    # It has not started, so its time limits do not run.
    assert await running.types(second) == ["run.started"]
    assert {first, small} == running.host.advancer.runs.keys()
    for gate in ("first", "second", "third", "small"):
        gates.open(gate)
    for run_id in (first, second, third, small):
        await running.until(run_id, "completed")
    await until_free(running)


async def test_large_runs_wait_in_the_order_they_came(running: Bench, gates: Gates) -> None:
    await start(running, "first")
    await gates.until_reached("first")
    await start(running, "second")
    await start(running, "third")

    gates.open("first")
    await gates.until_reached("second")

    assert not gates.reached["third"].is_set()
    gates.open("second")
    await gates.until_reached("third")


async def test_a_run_that_is_cancelled_while_it_waits_for_memory_keeps_no_other_out(
    running: Bench, gates: Gates
) -> None:
    await start(running, "first")
    await gates.until_reached("first")
    second = await start(running, "second")
    paused = await start(running, "paused")
    await start(running, "fourth")

    await running.host.commands.cancel(TENANT, second, "not needed")
    await running.host.commands.pause(TENANT, paused, PauseRun(drain_policy="immediate"))
    gates.open("first")

    await gates.until_reached("fourth")
    assert (await running.row(second)).status == "cancelled"
    assert not gates.reached["paused"].is_set()


async def test_a_large_run_that_waits_for_its_large_child_leaves_it_the_memory(
    running: Bench, gates: Gates
) -> None:
    child = await running.register([node("inner", "test.gate")], variables=[variable("v", "array")])
    config = {"workflowId": child, "inputMapping": {"v": "v"}}
    parent = await running.create(
        await running.register(
            [node("call", "core.subWorkflow", config=config)], variables=[variable("v", "array")]
        ),
        LARGE,
    )

    await gates.until_reached("inner")
    gates.open("inner")

    await running.until(parent, "completed")
    await until_free(running)
