from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, bench, numbered
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Sleeping, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.runs.interrupts.approvals import Resolver

pytestmark = pytest.mark.anyio

MINUTE = 60_000


async def outcome(  # noqa: C901 - one case for each outcome
    ctx: NodeContext, config: JsonObject, inputs: JsonObject
) -> Outcome:
    """Return or raise the outcome that the config names."""
    match config["outcome"]:
        case "completed":
            return Completed({"attempt": ctx.attempt})
        case "failed":
            raise NodeFailure("out of order", code="broken", retryable=False)
        case "raised":
            raise ValueError("out of order")
        case "flaky" if ctx.attempt:
            return Completed({"attempt": ctx.attempt})
        case "flaky":
            raise NodeFailure("busy", code="busy", retryable=True)
        case "sleeping" if ctx.now < ctx.started_at + MINUTE:
            return Sleeping(ctx.started_at + MINUTE)
        case "sleeping":
            return Completed()
        case "several":
            raise ExceptionGroup("two", [NodeFailure("one", code="one"), ValueError("two")])
        case "not-json":
            return Completed({"value": object()})
        case "asks":
            key = ctx.interrupt_key()
            answer = ctx.answer(key)
            if not answer:
                return Suspended(kind="custom", key=key, data={"customKind": "test", "payload": {}})
            return Completed({"answer": answer})
        case other:
            raise AssertionError(other)


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Bench]:
    async_type = NodeType(type_id="test.outcome", execute=outcome, is_async=True)
    async with bench(tmp_path, async_type, new_id=numbered()) as running:
        yield running


async def start(ours: Bench, name: str, **fields: object) -> str:
    step = node("step", "test.outcome", config={"outcome": name}, **fields)
    return await ours.create(await ours.register([step]))


async def payload(ours: Bench, run_id: str, event_type: str) -> JsonObject:
    [event] = [event for event in await ours.log(run_id) if event.type == event_type]
    found: JsonObject = event.payload
    return found


async def test_a_completed_node_has_its_outputs_on_the_log(ours: Bench) -> None:
    run_id = await start(ours, "completed")
    await ours.until(run_id, "completed")

    assert (await payload(ours, run_id, "node.completed"))["outputs"] == {"attempt": 0}


async def test_a_failed_node_fails_its_run_with_its_error(ours: Bench) -> None:
    run_id = await start(ours, "failed")
    await ours.until(run_id, "failed")

    assert (await payload(ours, run_id, "node.failed"))["error"]["code"] == "broken"
    assert (await payload(ours, run_id, "run.failed"))["failedNodeId"] == "step"


async def test_an_exception_of_a_node_is_named_in_its_error(ours: Bench) -> None:
    run_id = await start(ours, "raised", settings={"maxRetries": 0})
    await ours.until(run_id, "failed")

    error = (await payload(ours, run_id, "node.failed"))["error"]
    assert (error["code"], error["message"]) == ("node_error", "ValueError: out of order")


async def test_the_exceptions_of_a_group_are_all_listed(ours: Bench) -> None:
    run_id = await start(ours, "several", settings={"maxRetries": 0})
    await ours.until(run_id, "failed")

    error = (await payload(ours, run_id, "node.failed"))["error"]
    assert error["code"] == "one"
    assert [each["code"] for each in error["details"]["errors"]] == ["one", "node_error"]


async def test_outputs_that_are_not_json_fail_the_node(ours: Bench) -> None:
    run_id = await start(ours, "not-json")
    await ours.until(run_id, "failed")

    assert "not JSON" in (await payload(ours, run_id, "node.failed"))["error"]["message"]


async def test_a_retryable_failure_is_tried_again_after_its_delay(ours: Bench) -> None:
    settings = {"maxRetries": 1, "backoff": {"initialMs": MINUTE}}
    run_id = await start(ours, "flaky", settings=settings)
    await ours.until_logged(run_id, "node.retried")
    retried = await payload(ours, run_id, "node.retried")

    ours.clock.now += retried["delayMs"]
    await ours.wake(run_id)
    await ours.until(run_id, "completed")

    assert (retried["attempt"], retried["lastError"]["code"]) == (1, "busy")
    assert (await payload(ours, run_id, "node.completed"))["outputs"] == {"attempt": 1}


async def test_a_sleeping_node_is_called_again_at_its_time(ours: Bench) -> None:
    run_id = await start(ours, "sleeping")

    async def is_parked() -> bool:
        return (await ours.row(run_id)).wake_at == ours.clock.now + MINUTE

    await eventually_async(is_parked)
    ours.clock.now += MINUTE
    await ours.wake(run_id)
    await ours.until(run_id, "completed")

    assert (await ours.types(run_id)).count("node.started") == 1


async def test_a_suspended_node_gets_its_resume_value(ours: Bench) -> None:
    run_id = await start(ours, "asks")
    await ours.until_logged(run_id, "node.suspended")

    value = {"go": "on"}
    await ours.host.commands.resolve_interrupt(TENANT, run_id, "step", value, Resolver(name="ann"))
    await ours.until(run_id, "completed")

    assert (await payload(ours, run_id, "node.completed"))["outputs"] == {"answer": value}
