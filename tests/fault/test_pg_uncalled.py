"""No node is left alone: what runs by the log's word and is called by nobody is due by the row's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fault.inprocess import (
    TENANT,
    Bench,
    Gates,
    eventually,
    two_benches,
)
from tests.postgres.databases import Databases
from tests.wire.definitions import delay, edge, node
from tests.wire.waiting import ACCEPT, gate
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Unavailable
from wopr.protocol.runs import PauseRun
from wopr.runtime.waits import Resolver
from wopr.store.port import Batch

pytestmark = pytest.mark.anyio

ANN = Resolver(name="ann")
# More than a run can wait with a job in the queue.
LONG_MS = 30_000
MANY = 120


async def never(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
async def both(
    tmp_path: Path, gates: Gates, databases: Databases
) -> AsyncIterator[tuple[Bench, Bench]]:
    """A process that executes nodes, and one that only answers requests."""
    with databases.new() as url:
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
    """The worker does no more of what it has only in mind, and takes nothing from the queue."""
    monkeypatch.setattr(worker.host.advancer.wakeups, "soon", lambda *_: None)
    monkeypatch.setattr(worker.host.advancer.wakeups, "later", never)
    await worker.host.advancer.wakeups.source.stop()


async def is_due(bench: Bench, run_id: str, within: int = 0) -> bool:
    row = await bench.row(run_id)
    return row.wake_at is not None and row.wake_at <= bench.clock.now + within


async def until_let_go(bench: Bench, run_id: str) -> None:
    async def is_let_go() -> bool:
        return (await bench.row(run_id)).holder is None

    await eventually(is_let_go)


async def beside_a_gate(worker: Bench, gates: Gates, after: JsonObject) -> str:
    """A run whose one node is in flight at the worker while another waits for a person."""
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
    """Let the store be away for the first append that is meant; the answer has it then."""
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
async def test_a_timer_that_another_process_began_outlives_a_node_that_ends_here(
    worker: Bench, api: Bench, gates: Gates
) -> None:
    run_id = await beside_a_gate(worker, gates, delay("sleep", LONG_MS))
    await api.host.commands.answer(TENANT, run_id, "person", ACCEPT, ANN)
    assert await is_due(api, run_id, LONG_MS)

    gates.open("wait")
    await until_let_go(api, run_id)

    assert await is_due(api, run_id, LONG_MS)


@pytest.mark.usefixtures("dying")
async def test_a_node_that_another_process_may_not_execute_is_due_when_a_node_ends_here(
    worker: Bench, api: Bench, gates: Gates
) -> None:
    run_id = await beside_a_gate(worker, gates, node("next", "test.gate"))
    await api.host.commands.answer(TENANT, run_id, "person", ACCEPT, ANN)
    assert await is_due(api, run_id)

    gates.open("wait")
    await until_let_go(api, run_id)

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

    await eventually(has_failed)
    gates.open("two")
    await until_let_go(worker, run_id)

    assert await is_due(worker, run_id)


@pytest.mark.usefixtures("dying")
async def test_a_wake_up_whose_advance_could_not_be_written_is_kept_by_a_node_that_ends(
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
async def test_nodes_that_others_must_execute_stay_due_while_more_steps_are_taken(
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


async def test_a_node_that_was_begun_anew_elsewhere_is_called_anew_here(
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
