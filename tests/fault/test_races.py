from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from tests.conftest import Database
from tests.fault.checker import problems
from tests.fault.second_writer import SecondWriter
from tests.support.definitions import delay, node
from tests.support.eventually import eventually_async
from tests.support.in_process import (
    DEADLINE_SECONDS,
    LINES,
    TENANT,
    Bench,
    Gates,
    bench,
    gate_types,
    numbered,
)
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Conflict
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.resources.webhooks import RegisterWebhook
from wopr.protocol.runs import CancelAnswer, PauseRun

pytestmark = pytest.mark.anyio

NOW = PauseRun(drain_policy="immediate")
DRAIN = PauseRun()


async def at_once(*calls: Callable[[], Awaitable[object]]) -> None:
    """Make all calls concurrently; conflicting ones are refused."""

    async def make(call: Callable[[], Awaitable[object]]) -> None:
        with suppress(Conflict):
            await call()

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(make, call)


async def test_concurrent_cancels_cause_one_end(ours: Bench, gates: Gates) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    answers: list[CancelAnswer] = []

    async def cancel() -> None:
        answers.append(await ours.host.commands.cancel(TENANT, run_id, "enough"))

    await at_once(*[cancel] * 50)

    assert [answer.status for answer in answers] == ["cancelled"] * 50
    assert (await ours.types(run_id))[-2:] == ["node.cancelled", "run.cancelled"]
    assert (await ours.types(run_id)).count("run.cancelled") == 1


async def test_a_cancel_concurrent_with_the_end_causes_one_end(ours: Bench, gates: Gates) -> None:
    workflow = await ours.register([node("wait", "test.gate"), node("after")])
    runs = [await ours.create(workflow) for _ in range(30)]
    await gates.until_reached("wait")

    async def open_gate() -> None:
        gates.open("wait")

    async def cancel(run_id: str, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        await ours.host.commands.cancel(TENANT, run_id, "")

    async with anyio.create_task_group() as tasks:
        for turns, run_id in enumerate(runs):
            tasks.start_soon(cancel, run_id, turns)
        tasks.start_soon(open_gate)

    for run_id in runs:
        await ours.until(run_id, "completed", "cancelled")
        ends = [kind for kind in await ours.types(run_id) if kind in RUN_TERMINAL_TYPES]
        assert len(ends) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_many_pauses_and_resumes_leave_a_run_that_can_complete(
    ours: Bench, gates: Gates, seed: int
) -> None:
    chance = random.Random(seed)
    nodes = [node("first", "test.gate"), delay("second", 1), node("third", "test.gate")]
    run_id = await ours.create(await ours.register(nodes))
    commands = ours.host.commands
    gates.open("first")

    async def storm() -> None:
        for _ in range(12):
            for _ in range(chance.randrange(6)):
                await anyio.lowlevel.checkpoint()
            ours.clock.now += 1
            await at_once(
                chance.choice(
                    [
                        lambda: commands.pause(TENANT, run_id, NOW),
                        lambda: commands.pause(TENANT, run_id, DRAIN),
                        lambda: commands.resume(TENANT, run_id),
                        lambda: ours.wake(run_id),
                    ]
                )
            )

    await at_once(*[storm] * 4)
    gates.open("third")
    with anyio.fail_after(DEADLINE_SECONDS):
        while (await ours.row(run_id)).status != "completed":
            await at_once(lambda: commands.resume(TENANT, run_id), lambda: ours.wake(run_id))

    events = await ours.types(run_id)
    turns = [kind for kind in events if kind in ("run.paused", "run.resumed")]
    assert turns == ["run.paused", "run.resumed"] * (len(turns) // 2)
    assert events.count("run.completed") == 1


async def test_a_resumed_run_is_not_paused_by_the_same_request_again(
    ours: Bench, gates: Gates
) -> None:
    nodes = [node("first", "test.gate"), node("second", "test.gate")]
    run_id = await ours.create(await ours.register(nodes))
    await gates.until_reached("first")
    await ours.host.commands.pause(TENANT, run_id, DRAIN)
    gates.open("first")
    await ours.until(run_id, "paused")

    await ours.host.commands.resume(TENANT, run_id)
    await ours.wake(run_id)
    gates.open("second")
    await ours.until(run_id, "completed", "paused")

    assert (await ours.types(run_id)).count("run.paused") == 1
    assert (await ours.row(run_id)).status == "completed"


async def test_a_draining_run_is_not_advanced_until_an_event_occurs(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.gate")]))
    await gates.until_reached("wait")
    await ours.host.commands.pause(TENANT, run_id, DRAIN)

    await ours.wake(run_id)

    wake_at = (await ours.row(run_id)).wake_at
    assert wake_at is not None
    assert wake_at > ours.clock.now


async def test_a_delay_continues_while_its_run_drains(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([delay("wait", 500), node("after")]))

    await ours.host.commands.pause(TENANT, run_id, DRAIN)
    ours.clock.now += 500
    await ours.wake(run_id)

    assert (await ours.types(run_id))[-2:] == ["node.completed", "run.paused"]


async def test_a_second_pause_is_refused_while_the_first_one_drains(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([delay("wait", 500)]))
    await ours.host.commands.pause(TENANT, run_id, DRAIN)

    with pytest.raises(Conflict):
        await ours.host.commands.pause(TENANT, run_id, DRAIN)


async def test_a_pause_does_not_replace_a_cancellation(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([delay("wait", 500)]))
    SecondWriter(ours.database).add_command(
        run_id, b'{"kind":"cancel","reason":"parent-cancelled"}'
    )

    with pytest.raises(Conflict):
        await ours.host.commands.pause(TENANT, run_id, DRAIN)
    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "cancelled"


async def test_a_node_that_stops_slowly_does_not_disturb_its_next_attempt(
    ours: Bench, gates: Gates
) -> None:
    run_id = await ours.create(await ours.register([node("wait", "test.clingy")]))
    await gates.until_reached("wait-0")
    await ours.host.commands.pause(TENANT, run_id, NOW)
    await gates.until_reached("wait-0-stops")
    await ours.host.commands.resume(TENANT, run_id)
    await gates.until_reached("wait-1")

    gates.open("wait-0-stops")
    await anyio.wait_all_tasks_blocked()

    assert list((await ours.loaded(run_id)).in_flight) == ["wait"]
    gates.open("wait-1")
    gates.open("wait-1-stops")
    await ours.until(run_id, "completed")
    assert (await ours.types(run_id)).count("node.started") == 2


async def test_the_end_of_a_child_before_its_parent_waits_is_not_missed(
    ours: Bench, gates: Gates
) -> None:
    child = await ours.register([node("quick")])
    config = {"workflowId": child}
    run_id = await ours.create(
        await ours.register([node("call", "test.slow_parent", config=config)])
    )
    await gates.until_reached("call")
    await ours.until(gates.children[0], "completed")
    await anyio.wait_all_tasks_blocked()

    gates.open("call")

    await ours.until(run_id, "completed")


async def test_a_deleted_child_fails_its_parent_and_not_the_host(ours: Bench, gates: Gates) -> None:
    config = {"workflowId": await ours.register([node("wait", "test.gate")])}
    run_id = await ours.create(
        await ours.register([node("call", "core.subWorkflow", config=config)])
    )
    await gates.until_reached("wait")
    [child] = (await ours.snapshot(run_id))["childRuns"]
    await ours.host.commands.pause(TENANT, run_id, NOW)
    gates.open("wait")
    await ours.until(child["runId"], "completed")
    await ours.host.store.delete_expired_runs(ours.clock.now + 1, 10)

    await ours.host.commands.resume(TENANT, run_id)
    await ours.until(run_id, "failed")

    assert (await ours.snapshot(run_id))["error"]["code"] == "child_failed"


async def test_concurrent_tasks_of_a_node_can_flush(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([node("sing", "test.duet")]))

    await ours.until(run_id, "completed")

    lines = [e.payload["message"] for e in await ours.log(run_id) if e.type == "log.appended"]
    assert [line for line in lines if line.startswith("a")] == [f"a{n}" for n in range(LINES)]
    assert [line for line in lines if line.startswith("b")] == [f"b{n}" for n in range(LINES)]


async def test_a_node_that_times_out_during_a_flush_leaves_a_complete_log(
    ours: Bench,
) -> None:
    chatter = node("talk", "test.chatter", settings={"timeout": 40})
    runs = [await ours.create(await ours.register([chatter])) for _ in range(5)]
    seen: dict[str, list[int]] = {run_id: [] for run_id in runs}

    async def read(run_id: str) -> None:
        async for page in ours.host.run_reader.follow(TENANT, run_id, 0, heartbeat=30):
            seen[run_id] += [e.sequence for e in page] if isinstance(page, list) else []

    async with anyio.create_task_group() as tasks:
        for run_id in runs:
            tasks.start_soon(read, run_id)

    for run_id in runs:
        log = await ours.log(run_id)
        assert seen[run_id] == list(range(len(log)))
        assert [event.type for event in log[-2:]] == ["node.failed", "run.failed"]


async def test_a_run_woken_during_its_creation_executes_its_nodes_once(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open("wait")
    next_id = numbered()
    async with bench(tmp_path, *gate_types(gates), new_id=next_id) as ours:
        workflow = await ours.register([node("wait", "test.gate")])

        for _ in range(40):
            number = int(next_id().removeprefix("id-")) + 1
            await at_once(
                lambda: ours.create(workflow),
                lambda number=number: wake_as_soon_as_stored(ours, f"id-{number:08d}"),  # type: ignore[misc]  # the default binds the loop's value
            )
            run_id = f"id-{number:08d}"
            await ours.until(run_id, "completed")
            lines = [e for e in await ours.log(run_id) if e.type == "log.appended"]
            assert len(lines) == 2
    assert problems(tmp_path / "wopr.db") == []


async def wake_as_soon_as_stored(ours: Bench, run_id: str) -> None:
    while await ours.host.store.run(TENANT, run_id) is None:
        await anyio.lowlevel.checkpoint()
    await ours.wake(run_id)


async def test_a_wait_that_answers_itself_calls_no_parallel_node_twice(
    tmp_path: Path, new_database: Callable[[], Database]
) -> None:
    calls: list[str] = []

    async def count(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        calls.append(ctx.node_id)
        return Completed()

    counted = NodeType(type_id="test.count", execute=count, is_async=True)
    by_itself = node("talk", "core.conversationGate", config={"mockAutoResume": True})
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(tmp_path, counted, new_id=numbered(), url=url) as ours:
            run_id = await ours.create(
                await ours.register(
                    [node("beside", "test.count"), by_itself], id="conformance-self", edges=[]
                )
            )
            await ours.until(run_id, "completed")

    assert calls == ["beside"]


async def test_events_queued_during_a_delivery_count_are_delivered_at_once(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RegisterWebhook(url="https://example.com/hook", events=["run.*"])
    made = await ours.host.subscriptions.register(TENANT, request)
    looks: list[str] = []

    async def next_queue_due(tenant: str, webhook_id: str) -> None:
        looks.append(webhook_id)
        if len(looks) == 1:
            # Committed after this read of the store, and reported before its result.
            ours.host.dispatcher.wake(tenant, webhook_id)

    monkeypatch.setattr(ours.host.store, "next_queue_due", next_queue_due)

    async def is_at_work() -> bool:
        if not looks:
            ours.host.dispatcher.wake(TENANT, made.webhook_id)
        return bool(looks)

    await eventually_async(is_at_work)

    async def has_looked_again() -> bool:
        return len(looks) > 1

    await eventually_async(has_looked_again)
