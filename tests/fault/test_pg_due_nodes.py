"""Nodes that run by the log but are called by no process are due by the row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.definitions import delay, edge, node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates, two_benches
from tests.support.interrupts import ACCEPT, gate
from tests.support.postgres.databases import Databases
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Unavailable
from wopr.protocol.runs import PauseRun
from wopr.runs.interrupts.approvals import Resolver
from wopr.store.port import Batch

pytestmark = pytest.mark.anyio

ANN = Resolver(name="ann")
# Longer than a run can wait with a queued job.
LONG_MS = 30_000
MANY = 120


async def never(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
async def both(
    tmp_path: Path, gates: Gates, databases: Databases
) -> AsyncIterator[tuple[Bench, Bench]]:
    """A process that executes nodes, and one that only answers requests."""
    with databases.lent() as url:
        async with two_benches(tmp_path, gates, url, second_executes=False) as running:
            yield running


@pytest.fixture
def worker(both: tuple[Bench, Bench]) -> Bench:
    return both[0]


@pytest.fixture
def api(both: tuple[Bench, Bench]) -> Bench:
    return both[1]


@pytest.fixture
async def dying(worker: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the worker's in-memory wake-ups and its queue."""
    monkeypatch.setattr(worker.host.advancer.wakeups, "advance_soon", lambda *_: None)
    monkeypatch.setattr(worker.host.advancer.wakeups, "retry_later", never)
    await worker.host.advancer.wakeups.source.stop()


async def is_due(bench: Bench, run_id: str, within: int = 0) -> bool:
    row = await bench.row(run_id)
    return row.wake_at is not None and row.wake_at <= bench.clock.now + within


async def until_released(bench: Bench, run_id: str) -> None:
    async def is_let_go() -> bool:
        return (await bench.row(run_id)).holder is None

    await eventually_async(is_let_go)


async def beside_a_gate(worker: Bench, gates: Gates, after: JsonObject) -> str:
    """Start a run whose one node is in flight at the worker while another waits for a person."""
    run_id = await worker.create(
        await worker.register(
            [node("wait", "test.gate"), gate("person"), after],
            edges=[edge("person", str(after["id"]))],
        )
    )
    await gates.until_reached("wait")
    return run_id


def fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Batch], bool]
) -> list[Batch]:
    """Make the store fail at the first matching append; the returned event is then set."""
    store = bench.host.store
    append = store.append
    failed: list[Batch] = []

    async def fragile(tenant: str, batches: Sequence[Batch]) -> bool:
        if not failed and is_meant(batches[0]):
            failed.append(batches[0])
            raise Unavailable("the store is away")
        return await append(tenant, batches)

    monkeypatch.setattr(store, "append", fragile)
    return failed


@pytest.mark.usefixtures("dying")
async def test_a_timer_started_by_another_process_survives_the_end_of_a_node(
    worker: Bench, api: Bench, gates: Gates
) -> None:
    run_id = await beside_a_gate(worker, gates, delay("sleep", LONG_MS))
    await api.host.commands.resolve_interrupt(TENANT, run_id, "person", ACCEPT, ANN)
    assert await is_due(api, run_id, LONG_MS)

    gates.open("wait")
    await until_released(api, run_id)

    assert await is_due(api, run_id, LONG_MS)


@pytest.mark.usefixtures("dying")
async def test_a_node_that_another_process_may_not_execute_is_due_when_a_node_ends_here(
    worker: Bench, api: Bench, gates: Gates
) -> None:
    run_id = await beside_a_gate(worker, gates, node("next", "test.gate"))
    await api.host.commands.resolve_interrupt(TENANT, run_id, "person", ACCEPT, ANN)
    assert await is_due(api, run_id)

    gates.open("wait")
    await until_released(api, run_id)

    assert await is_due(api, run_id)


@pytest.mark.usefixtures("dying")
async def test_a_node_whose_end_could_not_be_written_is_due_when_another_one_ends(
    worker: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("one", "two")
    run_id = await worker.create(
        await worker.register([node(name, "test.gate") for name in names], edges=[])
    )
    for name in names:
        await gates.until_reached(name)
    failed = fails(worker, monkeypatch, lambda batch: batch.run.run_id == run_id)
    gates.open("one")

    async def has_failed() -> bool:
        return bool(failed)

    await eventually_async(has_failed)
    gates.open("two")
    await until_released(worker, run_id)

    assert await is_due(worker, run_id)


@pytest.mark.usefixtures("dying")
async def test_a_wake_up_whose_advance_could_not_be_written_is_kept_when_a_node_ends(
    worker: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await worker.register([node("inner", "test.gate")])
    call = node("call", "core.subWorkflow", config={"workflowId": child})
    run_id = await worker.create(await worker.register([node("wait", "test.gate"), call], edges=[]))
    await worker.until_logged(run_id, "node.dispatched")
    dispatched = [event for event in await worker.log(run_id) if event.type == "node.dispatched"]
    child_id = dispatched[0].payload["childRunId"]
    await worker.host.commands.cancel(TENANT, child_id, "enough")
    assert await is_due(worker, run_id)
    failed = fails(worker, monkeypatch, lambda batch: batch.run.run_id == run_id)
    await worker.wake(run_id)
    assert failed

    gates.open("wait")
    await worker.until_logged(run_id, "node.completed")

    assert await is_due(worker, run_id)


@pytest.mark.usefixtures("dying")
async def test_nodes_that_others_must_execute_stay_due_while_more_steps_are_planned(
    api: Bench,
) -> None:
    many = [node(f"step{number}") for number in range(MANY)]
    steps = [str(each["id"]) for each in many]
    run_id = await api.create(
        await api.register(
            [node("wait", "test.gate"), *many],
            edges=[edge(one, two) for one, two in pairwise(steps)],
        )
    )

    assert (await api.types(run_id)).count("node.completed") == MANY
    assert await is_due(api, run_id)


async def test_a_node_started_again_elsewhere_is_called_again_here(
    worker: Bench, api: Bench, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await worker.create(await worker.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, PauseRun(drain_policy="immediate"))
        await api.host.commands.resume(TENANT, run_id)
        del gates.reached["wait"]

    await worker.wake(run_id)

    await gates.until_reached("wait")
    gates.open("wait")
    await worker.until(run_id, "completed")
