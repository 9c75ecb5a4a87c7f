"""Nodes that do not wait for a person: their time limit applies exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.fault.forking import forked, log_content
from tests.fault.waiting import ANN, answer, payloads
from tests.support.definitions import delay, edge, node
from tests.support.eventually import eventually_async
from tests.support.in_process import NOON, TENANT, Bench, Clock, Gates, bench, numbered, two_benches
from tests.support.interrupts import ACCEPT, gate
from wopr.engine.outcome import Outcome, Waiting
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.anyio

LIMIT_MS = 60_000
OVER_AT = NOON + LIMIT_MS + 1
LIMITED: JsonObject = {"timeout": LIMIT_MS}


async def calling(ours: Bench, settings: JsonObject = LIMITED, **config: Json) -> JsonObject:
    """Return a node whose child waits for a person."""
    child = await ours.register([gate()])
    config = {"workflowId": child, **config}
    return node("call", "core.subWorkflow", config=config, settings=settings)


async def until_due_at(ours: Bench, run_id: str, instant: int) -> None:
    """Wait until the run has no holder and its timer is set."""

    async def is_so() -> bool:
        row = await ours.row(run_id)
        return row.holder is None and row.wake_at == instant

    await eventually_async(is_so)


async def children(ours: Bench, run_id: str) -> list[str]:
    return [each["childRunId"] for each in await payloads(ours, run_id, "node.dispatched")]


async def failure(ours: Bench, run_id: str) -> str:
    await ours.until(run_id, "failed")
    [failed] = await payloads(ours, run_id, "run.failed")
    return str(failed["error"]["code"])


# A child that takes too long


async def test_a_wait_for_a_child_ends_with_the_node_s_time_and_not_before(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([await calling(ours)]))
    await until_due_at(ours, run_id, OVER_AT)
    ours.clock.now = OVER_AT - 1
    await ours.wake(run_id)
    await until_due_at(ours, run_id, OVER_AT)
    early = await ours.types(run_id)

    ours.clock.now = OVER_AT
    await ours.wake(run_id)

    assert await failure(ours, run_id) == "node_timeout"
    assert early == ["run.started", "node.started", "node.dispatched"]


async def test_a_child_that_no_parent_waits_for_any_more_is_cancelled(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([await calling(ours)]))
    await until_due_at(ours, run_id, OVER_AT)
    [child] = await children(ours, run_id)

    ours.clock.now = OVER_AT
    await ours.wake(run_id)
    await ours.until(child, "cancelled")

    [cancelled] = await payloads(ours, child, "run.cancelled")
    assert cancelled == {"reason": "parent-cancelled", "parentRunId": run_id}


async def test_a_child_that_cancels_do_not_reach_survives_the_wait_for_it(ours: Bench) -> None:
    call = await calling(ours, propagateCancellation=False)
    run_id = await ours.create(await ours.register([call]))
    await until_due_at(ours, run_id, OVER_AT)
    [child] = await children(ours, run_id)

    ours.clock.now = OVER_AT
    await ours.wake(run_id)
    await ours.until(run_id, "failed")

    assert (await answer(ours, child, ACCEPT)).status == "completed"


async def test_the_next_attempt_waits_for_its_own_child_for_the_full_time(
    ours: Bench,
) -> None:
    call = await calling(ours, LIMITED | {"maxRetries": 1, "backoff": {"initialMs": 0}})
    run_id = await ours.create(await ours.register([call]))
    await until_due_at(ours, run_id, OVER_AT)

    ours.clock.now = OVER_AT
    await ours.wake(run_id)
    await ours.until_logged(run_id, "node.dispatched", 2)
    await until_due_at(ours, run_id, OVER_AT + LIMIT_MS + 1)
    first, second = await children(ours, run_id)
    await ours.until(first, "cancelled")
    await ours.until(second, "waiting-approval")
    await answer(ours, second, ACCEPT)

    await ours.until(run_id, "completed")


async def test_a_child_that_takes_too_long_is_a_failure_that_the_workflow_can_handle(
    ours: Bench,
) -> None:
    ends = [edge("call", "after", triggerRule="any_failed")]
    nodes = [await calling(ours), node("after")]
    run_id = await ours.create(await ours.register(nodes, edges=ends))
    await until_due_at(ours, run_id, OVER_AT)

    ours.clock.now = OVER_AT
    await ours.wake(run_id)

    await ours.until(run_id, "completed")


# Other waits


async def test_a_node_that_sleeps_longer_than_its_time_limit_is_stopped(
    ours: Bench, gates: Gates
) -> None:
    sleeper = delay("sleep", LIMIT_MS) | {"settings": {"timeout": 1000}}
    run_id = await ours.create(await ours.register([sleeper, node("wait", "test.gate")], edges=[]))
    await gates.until_reached("wait")
    assert (await ours.row(run_id)).wake_at == NOON + 1001

    ours.clock.now += 1001
    await ours.wake(run_id)

    assert await failure(ours, run_id) == "node_timeout"


async def test_the_time_limit_of_an_executing_node_wakes_no_run(ours: Bench, gates: Gates) -> None:
    waits = node("wait", "test.gate", settings=LIMITED)
    run_id = await ours.create(await ours.register([waits]))
    await gates.until_reached("wait")

    wake_at = (await ours.row(run_id)).wake_at

    assert wake_at is not None
    assert wake_at > OVER_AT


async def test_a_person_can_take_longer_than_the_node_s_time_limit(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([gate() | {"settings": LIMITED}]))
    wake_at = (await ours.row(run_id)).wake_at

    ours.clock.now = OVER_AT
    await ours.wake(run_id)

    assert wake_at is not None
    assert wake_at > OVER_AT
    assert (await answer(ours, run_id, ACCEPT)).status == "completed"


# Restarts and other processes


async def test_a_restart_does_not_extend_a_node_s_time(
    tmp_path: Path, new_database: Callable[[], Database]
) -> None:
    clock, new_id = Clock(), numbered()
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(tmp_path, clock=clock, new_id=new_id, url=url) as ours:
            run_id = await ours.create(await ours.register([await calling(ours)]))
            await until_due_at(ours, run_id, OVER_AT)
        clock.now = OVER_AT - 1

        async with bench(tmp_path, clock=clock, new_id=new_id, url=url) as ours:
            await ours.wake(run_id)
            await until_due_at(ours, run_id, OVER_AT)
            clock.now = OVER_AT
            await ours.wake(run_id)

            assert await failure(ours, run_id) == "node_timeout"


async def test_a_wait_started_by_another_process_ends_here(
    tmp_path: Path, gates: Gates, postgres_url: str
) -> None:
    async with two_benches(tmp_path, gates, postgres_url) as (one, two):
        run_id = await one.create(await one.register([await calling(one)]))
        await until_due_at(one, run_id, OVER_AT)
        one.clock.now = OVER_AT

        await two.wake(run_id)

        assert await failure(two, run_id) == "node_timeout"


async def test_a_process_that_does_not_execute_enforces_the_time_of_another_process_s_wait(
    tmp_path: Path, gates: Gates, postgres_url: str
) -> None:
    async with two_benches(tmp_path, gates, postgres_url, second_executes=False) as (one, two):
        nodes = [await calling(one), gate("person"), gate("other")]
        run_id = await one.create(await one.register(nodes, edges=[]))
        await until_due_at(one, run_id, OVER_AT)

        await two.host.commands.resolve_interrupt(TENANT, run_id, "person", ACCEPT, ANN)

        await until_due_at(two, run_id, OVER_AT)


# Replays


async def test_a_replay_repeats_how_a_node_s_time_ended(ours: Bench) -> None:
    sleeper = delay("sleep", LIMIT_MS) | {"settings": {"timeout": 1000}}
    nodes = [sleeper, await calling(ours)]
    ends = [edge("sleep", "call", triggerRule="any_failed")]
    run_id = await ours.create(await ours.register(nodes, edges=ends))
    ours.clock.now += 1001
    await ours.wake(run_id)
    await until_due_at(ours, run_id, OVER_AT + 1001)
    ours.clock.now = OVER_AT + 1001
    await ours.wake(run_id)
    await ours.until(run_id, "failed")

    replay = await forked(ours, run_id)

    assert await log_content(ours, replay) == await log_content(ours, run_id)


async def test_a_replay_beyond_the_record_does_not_wait(tmp_path: Path) -> None:
    def wait(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Outcome:
        return Waiting()

    waiting = NodeType(type_id="test.wait", execute=wait)
    async with bench(tmp_path, waiting, new_id=numbered()) as ours:
        waits = node("wait", "test.wait", settings=LIMITED)
        run_id = await ours.create(await ours.register([waits]))
        assert (await ours.row(run_id)).wake_at == OVER_AT

        replay = await forked(ours, run_id)

        assert await failure(ours, replay) == "node_timeout"
