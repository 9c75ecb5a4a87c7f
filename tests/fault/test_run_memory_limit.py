"""Large runs wait while there is no memory for them, and continue when there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.support.definitions import node, variable
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates, bench, gate_types, numbered
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

# One run with these inputs needs more than half of the memory.
MEMORY = 2 * 1024 * 1024
LARGE: JsonObject = {"v": [[]] * 10_000}


@pytest.fixture
async def running(
    tmp_path: Path, gates: Gates, new_database: Callable[[], Database]
) -> AsyncIterator[Bench]:
    """Run a host with memory for one large run of a tenant."""
    types = gate_types(gates)
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(
            tmp_path, *types, new_id=numbered(), url=url, max_held_bytes=MEMORY
        ) as host:
            yield host


async def start(host: Bench, gate: str, inputs: JsonObject = LARGE) -> str:
    definition = await host.register([node(gate, "test.gate")], variables=[variable("v", "array")])
    return await host.create(definition, inputs)


async def until_free(host: Bench) -> None:
    async def is_free() -> bool:
        return host.host.advancer.leases.memory.count == 0

    await eventually_async(is_free)


async def test_a_large_run_waits_for_memory_and_continues_when_some_is_free(
    running: Bench, gates: Gates
) -> None:
    first = await start(running, "first")
    await gates.until_reached("first")

    second, third = await start(running, "second"), await start(running, "third")
    await running.wake(second)
    small = await start(running, "small", {"v": []})
    await gates.until_reached("small")

    # It has not started, so its time limits are not running.
    assert await running.types(second) == ["run.started"]
    assert {first, small} == running.host.advancer.active.runs.keys()
    for gate in ("first", "second", "third", "small"):
        gates.open(gate)
    for run_id in (first, second, third, small):
        await running.until(run_id, "completed")
    await until_free(running)


async def test_large_runs_wait_in_order_of_arrival(running: Bench, gates: Gates) -> None:
    await start(running, "first")
    await gates.until_reached("first")
    await start(running, "second")
    await start(running, "third")

    gates.open("first")
    await gates.until_reached("second")

    assert not gates.reached["third"].is_set()
    gates.open("second")
    await gates.until_reached("third")


async def test_a_run_cancelled_while_it_waits_for_memory_does_not_delay_others(
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


async def test_a_large_run_that_waits_for_its_large_child_frees_its_memory(
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
