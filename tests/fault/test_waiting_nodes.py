from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fault.waiting import answer, inbox, payloads
from tests.support.definitions import edge, node
from tests.support.in_process import TENANT, Bench, bench, numbered
from tests.support.interrupts import ACCEPT, REFINE, gate
from wopr.engine.outcome import Completed, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio


def declared(name: str, execute: Any, *, is_async: bool = False) -> NodeType:
    return NodeType(type_id=f"test.{name}", execute=execute, is_async=is_async)


def asking(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Outcome:
    """Ask under a key of the config, and complete with the answer."""
    key = config.get("key", ctx.interrupt_key())
    answered: Json = ctx.answer(key)
    if not isinstance(answered, Unset) and not config.get("forgetful"):
        return Completed({"answer": answered})
    return Suspended(kind=config.get("kind", "custom"), key=key, data=config["data"])


CUSTOM_DATA = {"customKind": "k"}


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path, declared("ask", asking), new_id=numbered()) as running:
        yield running


async def test_a_question_with_a_used_key_gets_the_recorded_answer(
    asked: Bench,
) -> None:
    config = {"key": "shared", "data": CUSTOM_DATA}
    nodes = [node("one", "test.ask", config=config), node("two", "test.ask", config=config)]
    run_id = await asked.create(await asked.register(nodes))

    taken = await answer(asked, run_id, {"n": 1}, "one")

    assert taken.status == "completed"
    assert (await asked.types(run_id)).count("interrupt.requested") == 1
    completed = await payloads(asked, run_id, "node.completed")
    assert [each["outputs"]["answer"] for each in completed] == [{"n": 1}, {"n": 1}]


async def test_a_node_that_repeats_an_answered_question_fails(
    asked: Bench,
) -> None:
    config = {"data": CUSTOM_DATA, "forgetful": True}
    run_id = await asked.create(await asked.register([node("one", "test.ask", config=config)]))

    assert (await answer(asked, run_id, 1, "one")).status == "failed"

    types = await asked.types(run_id)
    assert types.count("interrupt.requested") == 1
    assert types[-3:] == ["node.suspend-failed", "node.failed", "run.failed"]


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "approval", "data": {"title": "no artifact"}},
        {"kind": "clarification", "data": {"questions": []}},
        {"kind": "nonsense", "data": {}},
        {"data": {}},
        {"data": CUSTOM_DATA, "key": "k" * 257},
        {"data": CUSTOM_DATA, "key": ""},
    ],
)
async def test_an_invalid_request_is_logged_and_fails_the_run(
    asked: Bench, config: JsonObject
) -> None:
    run_id = await asked.create(await asked.register([node("one", "test.ask", config=config)]))

    assert (await asked.types(run_id))[2:] == ["node.suspend-failed", "node.failed", "run.failed"]
    [failed] = await payloads(asked, run_id, "node.suspend-failed")
    assert failed["error"]["code"] == "validation_error"
    assert await inbox(asked, run_id) == []


@pytest.mark.parametrize(
    "event_type",
    [
        "interrupt.resolved",
        "approval.received",
        "approval.granted",
        "clarification.resolved",
        "node.resumed",
        "conversation.closed",
    ],
)
async def test_an_event_emitted_by_a_node_does_not_advance_a_wait(
    tmp_path: Path, event_type: str
) -> None:
    def speak(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        value = {"action": "accept", "decidedBy": "me", "nodeId": "gate", "answers": {}}
        about = {"interruptId": "int-gate:0", "gateId": "gate", "principal": "me"}
        ctx.emit(event_type, value | about)
        return Completed()

    async with bench(tmp_path, declared("speak", speak), new_id=numbered()) as ours:
        nodes = [gate(), node("speak", "test.speak"), node("after")]
        ends = [edge("gate", "after"), edge("speak", "after", triggerRule="any_failed")]
        run_id = await ours.create(await ours.register(nodes, edges=ends))

        assert (await ours.row(run_id)).status == "waiting-approval"
        assert event_type not in await ours.types(run_id)
        [failed] = await payloads(ours, run_id, "node.failed")
        assert failed["nodeId"] == "speak"


async def test_a_node_that_repeats_the_work_gets_the_feedback(tmp_path: Path) -> None:
    def work(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        return Completed({"feedback": ctx.feedback, "visit": ctx.visit})

    async with bench(tmp_path, declared("work", work), new_id=numbered()) as ours:
        nodes = [node("work", "test.work"), gate(actions=["accept", "refine"])]
        run_id = await ours.create(await ours.register(nodes))
        for _ in range(2):
            await answer(ours, run_id, REFINE)
        await answer(ours, run_id, ACCEPT)

        done = [
            each["outputs"]
            for each in await payloads(ours, run_id, "node.completed")
            if each["nodeId"] == "work"
        ]

    shorter = {"scope": "whole", "text": "shorter"}
    assert [each["feedback"] for each in done] == [None, shorter, shorter]
    assert [each["visit"] for each in done] == [0, 1, 2]


async def test_a_run_that_suspends_while_it_drains_is_paused_with_its_interrupt(
    tmp_path: Path,
) -> None:
    reached, opened = anyio.Event(), anyio.Event()

    async def slow(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Outcome:
        key = ctx.interrupt_key()
        if not isinstance(ctx.answer(key), Unset):
            return Completed()
        reached.set()
        await opened.wait()
        return Suspended(kind="custom", key=key, data=CUSTOM_DATA)

    slow_type = declared("slow", slow, is_async=True)
    async with bench(tmp_path, slow_type, new_id=numbered()) as ours:
        run_id = await ours.create(await ours.register([node("slow", "test.slow")]))
        await reached.wait()
        await ours.host.commands.pause(TENANT, run_id, PauseRun())
        opened.set()
        await ours.until(run_id, "paused")
        waits = await inbox(ours, run_id)

        paused = await answer(ours, run_id, 1, "slow")
        await ours.host.commands.resume(TENANT, run_id)
        await ours.until(run_id, "completed")

        assert [each["nodeId"] for each in waits] == ["slow"]
        assert paused.status == "paused"
