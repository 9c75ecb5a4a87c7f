from __future__ import annotations

import random

import anyio
import anyio.to_thread
import pytest

from tests.fault.checker import problems
from tests.fault.second_writer import SecondWriter
from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates
from wopr.protocol.errors import Conflict, Unavailable
from wopr.protocol.runs import PauseRun
from wopr.runs.append import EventBatch
from wopr.runs.event_bus import Bus
from wopr.runs.journal import MAX_RACES
from wopr.store.port import StoredEvent

pytestmark = pytest.mark.anyio


@pytest.fixture
def rival(ours: Bench) -> SecondWriter:
    return SecondWriter(ours.database)


async def messages(ours: Bench, run_id: str) -> list[str]:
    lines = [event for event in await ours.log(run_id) if event.type == "log.appended"]
    return [line.payload.get("message", "rival") for line in lines]


async def test_a_node_that_ends_after_another_writer_keeps_all_its_output(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate"), node("after")]))
    await gates.until_reached("wait")
    rival.append(run_id)

    gates.open("wait")
    await ours.until(run_id, "completed")

    assert await messages(ours, run_id) == ["rival", "before 0", "after 0"]
    assert (await ours.types(run_id)).count("node.completed") == 2
    assert (await ours.snapshot(run_id))["variables"] == {"passed": "wait"}


async def test_a_flush_after_another_writer_is_neither_lost_nor_repeated(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.talk")]))
    await gates.until_reached("wait")
    rival.append(run_id)

    gates.open("wait")
    await ours.until(run_id, "completed")

    assert await messages(ours, run_id) == ["before", "rival", "after"]


async def test_a_run_cancelled_by_another_writer_gets_no_more_events(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.talk"), node("after")]))
    await gates.until_reached("wait")
    rival.append(run_id, "node.cancelled", {"nodeId": "wait"}, "wait")
    rival.append(run_id, "run.cancelled")

    gates.open("wait")
    await anyio.wait_all_tasks_blocked()
    answer = await ours.host.commands.cancel(TENANT, run_id, "")

    assert (answer.status, answer.already_terminal) == ("cancelled", True)
    assert (await ours.types(run_id))[-1] == "run.cancelled"


async def test_output_of_a_superseded_attempt_is_not_logged(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.talk")]))
    await gates.until_reached("wait")
    rival.append(run_id, "node.cancelled", {"nodeId": "wait", "reason": "paused"}, "wait")
    rival.append(run_id, "run.paused", {"drainPolicy": "immediate"})

    gates.open("wait")
    await anyio.wait_all_tasks_blocked()

    assert (await ours.types(run_id))[-1] == "run.paused"


@pytest.mark.parametrize("meanwhile", ["run.resumed", "run.cancelled"])
async def test_the_second_of_two_resumes_is_refused(
    ours: Bench, gates: Gates, rival: SecondWriter, meanwhile: str
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    await ours.host.commands.pause(TENANT, run_id, PauseRun(drain_policy="immediate"))
    run = ours.host.advancer.active.runs[run_id] = await ours.loaded(run_id)
    rival.append(run_id, meanwhile)

    with pytest.raises(Conflict):
        await ours.host.commands.resume(TENANT, run_id)

    async def is_known() -> bool:
        return run.state.next_sequence == len(await ours.log(run_id))

    await eventually_async(is_known)
    types = await ours.types(run_id)
    assert types[types.index("run.paused") + 1] == meanwhile
    assert types.count("run.resumed") == (meanwhile == "run.resumed")


async def test_a_live_reader_gets_the_other_writer_s_events_in_order(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    nodes = [node("first", "test.talk"), node("second", "test.talk")]
    run_id = await ours.create(await ours.register(nodes))
    await gates.until_reached("first")
    seen: list[int] = []
    reading = anyio.Event()

    async def read() -> None:
        async for page in ours.host.run_reader.follow(TENANT, run_id, 0, heartbeat=30):
            assert isinstance(page, list)
            seen.extend(event.sequence for event in page)
            reading.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await reading.wait()
        gates.open("first")
        await gates.until_reached("second")
        rival.append(run_id)
        gates.open("second")
        await ours.until(run_id, "completed")

    assert seen == list(range(len(await ours.log(run_id))))


async def test_readers_get_no_events_beyond_a_gap() -> None:
    first, third = (StoredEvent(sequence=n, type="log.appended", body=b"{}") for n in (1, 3))

    with Bus(max_readers_per_run=1).subscribe("run") as topic:
        topic.publish([first])
        topic.publish([third])

        assert topic.since(2) is None
        assert topic.since(3) == [third]


async def test_a_writer_that_always_loses_stops_and_reports_it(
    ours: Bench, gates: Gates, rival: SecondWriter
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    run = await ours.loaded(run_id)
    before = len(await ours.log(run_id))

    def change(batch: EventBatch) -> None:
        rival.append(run_id)
        batch.add("log.appended", {})

    async with run.lock:
        with pytest.raises(Unavailable):
            await ours.host.advancer.transact(run, change)

    assert len(await ours.log(run_id)) == before + MAX_RACES


@pytest.mark.parametrize("seed", range(3))
async def test_any_second_writer_causes_neither_a_gap_nor_a_repetition(
    ours: Bench, rival: SecondWriter, gates: Gates, seed: int
) -> None:
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(6)]
    workflow = await ours.register([node(name, "test.talk") for name in names])
    runs = [await ours.create(workflow) for _ in range(5)]

    for name in names:
        await gates.until_reached(name)
        for _ in range(chance.randrange(8)):
            # In a thread, because the event loop may have to end a transaction first.
            await anyio.to_thread.run_sync(rival.append, chance.choice(runs))
        gates.open(name)
        for run_id in runs:
            await ours.until_logged(run_id, "node.completed", names.index(name) + 1)

    for run_id in runs:
        await ours.until(run_id, "completed")
        said = [line for line in await messages(ours, run_id) if line != "rival"]
        assert said == ["before", "after"] * len(names)
    assert problems(ours.database) == []
