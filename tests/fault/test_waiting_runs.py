from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fault.inprocess import NOON, TENANT, Bench, Clock, bench, numbered
from tests.wire.definitions import delay, edge, node
from tests.wire.waiting import ACCEPT, REFINE, external, gate
from wopr.engine.outcome import Completed, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import Conflict, NotFound, Unprocessable
from wopr.protocol.interrupts import AnswerTaken
from wopr.protocol.runs import PauseRun
from wopr.runtime.active import ActiveRun
from wopr.runtime.tracing import Tracing
from wopr.runtime.waits import Resolver
from wopr.store.port import SuspensionFilter
from wopr.store.sql.dialect import SQLITE
from wopr.store.sql.inbox import pending_listing

pytestmark = pytest.mark.anyio

ANN = Resolver(name="ann", role="admin")
DAY_MS = 86_400_000
MINUTE_MS = 60_000
MANY = 10_000

ASK = gate(
    "gate",
    "core.clarificationGate",
    questions=[{"id": "q", "question": "?"}],
    timeoutMs=MINUTE_MS,
)
CUSTOM = {"kind": "custom", "data": {"customKind": "k"}, "timeoutMs": MINUTE_MS}
GOVERNED = {"requiredRole": "admin", "timeoutSec": 60}
# Each kind of wait with a minute's patience, its answer, and the events that only its end has.
KINDS: dict[str, tuple[JsonObject, Json, list[str]]] = {
    "approval": (gate(timeoutMs=MINUTE_MS), ACCEPT, ["approval.received"]),
    "clarification": (ASK, {"answers": {"q": 1}}, []),
    "external-event": (external("gate", timeoutMs=MINUTE_MS), {"orderId": "o1"}, []),
    "custom": (gate("gate", "core.interrupt", **CUSTOM), {"any": 1}, []),
    "conversation": (
        gate("gate", "core.conversationGate", timeoutMs=MINUTE_MS),
        {"operation": "close"},
        [],
    ),
    "governance": (
        gate("gate", "core.openwop.governance.approvalGate", **GOVERNED),
        {"decision": "granted"},
        ["approval.received"],
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


async def answer(ours: Bench, run_id: str, value: Json, node_id: str = "gate") -> AnswerTaken:
    return await ours.host.commands.answer(TENANT, run_id, node_id, value, ANN)


async def payloads(ours: Bench, run_id: str, event_type: str) -> list[JsonObject]:
    return [event.payload for event in await ours.log(run_id) if event.type == event_type]


async def inbox(ours: Bench, run_id: str) -> list[JsonObject]:
    where = SuspensionFilter(run_id=run_id)
    page = await ours.host.store.pending(TENANT, where, None, 10)
    return [msgspec.json.decode(row.body) for row in page.suspensions]


def declared(name: str, execute: Any, *, is_async: bool = False) -> NodeType:
    return NodeType(type_id=f"test.{name}", execute=execute, is_async=is_async)


# Time


@every_kind
async def test_a_wait_times_out_at_its_deadline_and_not_before(ours: Bench, kind: str) -> None:
    waits, _, also = KINDS[kind]
    run_id = await ours.create(await ours.register([waits]))
    ours.clock.now = NOON + MINUTE_MS - 1
    await ours.wake(run_id)
    early = await ours.row(run_id)

    ours.clock.now = NOON + MINUTE_MS
    await ours.wake(run_id)

    assert early.status.startswith("waiting-")
    assert early.wake_at == NOON + MINUTE_MS
    assert (await ours.row(run_id)).status == "failed"
    types = await ours.types(run_id)
    assert types[types.index("interrupt.resolved") :] == [
        "interrupt.resolved",
        *also,
        "node.failed",
        "run.failed",
    ]
    assert (await payloads(ours, run_id, "run.failed"))[0]["error"]["code"] == "interrupt_timeout"
    assert await inbox(ours, run_id) == []


@every_kind
async def test_a_timed_out_wait_is_resolved_by_the_system_as_rejected(
    ours: Bench, kind: str
) -> None:
    run_id = await ours.create(await ours.register([KINDS[kind][0]]))
    ours.clock.now += DAY_MS

    await ours.wake(run_id)

    [resolved] = await payloads(ours, run_id, "interrupt.resolved")
    assert resolved["resolvedBy"] == "system:timeout"
    assert (resolved["outcome"], resolved["reason"]) == ("rejected", "timeout")
    for received in await payloads(ours, run_id, "approval.received"):
        assert received == {"nodeId": "gate", "action": "timeout"}


async def test_a_conversation_that_times_out_is_closed_by_the_host_first(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([KINDS["conversation"][0]]))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    [closed] = await payloads(ours, run_id, "conversation.closed")
    assert closed["outcome"] is None
    assert closed["finalTurn"]["role"] == "system"
    assert "timed out" in closed["finalTurn"]["content"]
    types = await ours.types(run_id)
    assert types.index("conversation.closed") < types.index("interrupt.resolved")


async def test_a_timeout_that_the_workflow_handles_does_not_fail_the_run(ours: Bench) -> None:
    handled = [edge("gate", "after", triggerRule="any_failed"), edge("after", "second")]
    nodes = [gate(timeoutMs=MINUTE_MS), node("after"), gate("second")]
    run_id = await ours.create(await ours.register(nodes, edges=handled))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "waiting-approval"
    with pytest.raises(Conflict, match="system:timeout"):
        await answer(ours, run_id, ACCEPT)
    assert (await answer(ours, run_id, ACCEPT, "second")).status == "completed"


async def test_a_run_that_goes_on_after_a_timeout_no_longer_says_that_it_waits(
    ours: Bench,
) -> None:
    handled = [edge("gate", "after", triggerRule="any_failed")]
    nodes = [gate(timeoutMs=MINUTE_MS), delay("after", MINUTE_MS)]
    run_id = await ours.create(await ours.register(nodes, edges=handled))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "running"


async def test_waiting_costs_a_node_nothing_of_its_own_time(ours: Bench) -> None:
    patient = gate() | {"settings": {"timeout": 1000}}
    run_id = await ours.create(await ours.register([patient]))
    ours.clock.now += DAY_MS

    assert (await answer(ours, run_id, ACCEPT)).status == "completed"


# Restarts


@every_kind
async def test_a_wait_is_answered_days_and_a_restart_later(tmp_path: Path, kind: str) -> None:
    waits, value, _ = KINDS[kind]
    unhurried = waits | {
        "config": {k: v for k, v in waits["config"].items() if not k.startswith("timeout")}
    }
    clock, new_id = Clock(), numbered()
    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        run_id = await ours.create(await ours.register([unhurried, node("after")]))
        log = await ours.log(run_id)
    clock.now += 5 * DAY_MS

    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        before = await ours.log(run_id)
        assert (await answer(ours, run_id, value)).status == "completed"
        after = await ours.log(run_id)

    assert before == log
    assert after[: len(log)] == log


@every_kind
async def test_a_deadline_that_passed_while_the_host_was_down_is_kept(
    tmp_path: Path, kind: str
) -> None:
    clock, new_id = Clock(), numbered()
    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        run_id = await ours.create(await ours.register([KINDS[kind][0]]))
    clock.now += 3 * DAY_MS

    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        await ours.until(run_id, "failed")
        assert (await payloads(ours, run_id, "run.failed"))[0]["error"]["code"] == (
            "interrupt_timeout"
        )


async def test_a_restart_does_not_give_a_wait_more_time(tmp_path: Path) -> None:
    clock, new_id = Clock(), numbered()
    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        run_id = await ours.create(await ours.register([gate(timeoutMs=MINUTE_MS)]))
    clock.now += MINUTE_MS - 1

    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        assert (await ours.row(run_id)).status == "waiting-approval"
        assert (await ours.row(run_id)).wake_at == NOON + MINUTE_MS
        clock.now += 1
        await ours.wake(run_id)
        assert (await ours.row(run_id)).status == "failed"


# Nodes that ask


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


async def test_a_node_that_asks_under_the_same_key_gets_the_recorded_answer(
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


async def test_a_node_that_asks_again_what_was_answered_fails_instead_of_asking_twice(
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
async def test_a_wait_that_cannot_be_is_on_the_log_as_such_and_fails_the_run(
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
async def test_nothing_that_a_node_says_advances_a_wait(tmp_path: Path, event_type: str) -> None:
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


async def test_the_node_that_does_the_work_again_gets_the_feedback(tmp_path: Path) -> None:
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


async def test_a_run_that_waits_while_it_drains_is_paused_with_its_interrupt(
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


# Too late


@every_kind
async def test_an_answer_to_a_cancelled_run_is_told_so(ours: Bench, kind: str) -> None:
    waits, value, _ = KINDS[kind]
    run_id = await ours.create(await ours.register([waits]))
    await ours.host.commands.cancel(TENANT, run_id, "enough")

    with pytest.raises(Unprocessable) as told:
        await answer(ours, run_id, value)

    assert told.value.code == "interrupt_cancelled"
    assert await inbox(ours, run_id) == []


@every_kind
async def test_a_second_answer_is_told_who_was_first(ours: Bench, kind: str) -> None:
    waits, value, _ = KINDS[kind]
    run_id = await ours.create(await ours.register([waits]))
    await answer(ours, run_id, value)

    with pytest.raises(Conflict) as told:
        await answer(ours, run_id, value)

    assert told.value.code == "interrupt_already_resolved"
    assert told.value.details["resolvedBy"] == "ann"


async def test_a_run_of_another_tenant_is_not_there(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([gate()]))

    with pytest.raises(NotFound):
        await ours.host.commands.answer("globex", run_id, "gate", ACCEPT, ANN)


# Many


@pytest.mark.sqlite("it counts the instructions of SQLite itself")
async def test_ten_thousand_waiting_runs_hold_nothing_in_memory_and_no_page_costs_more(
    ours: Bench,
) -> None:
    workflow = await ours.register([gate()])
    tasks = len(asyncio.all_tasks())
    await create_many(ours, workflow, 300)
    few = await steps_of_a_page(ours)

    await create_many(ours, workflow, MANY - 300)

    assert await ours.host.store.pending_count(TENANT) == MANY
    assert ours.host.advancer.runs == {}
    assert len(asyncio.all_tasks()) == tasks
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, ActiveRun)]
    assert await steps_of_a_page(ours) <= few * 1.05


async def create_many(ours: Bench, workflow: str, count: int) -> None:
    """Create runs, a hundred at once so that they share their commits."""
    room = anyio.CapacityLimiter(100)

    async def create() -> None:
        async with room:
            await ours.create(workflow)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(create)


async def steps_of_a_page(ours: Bench) -> int:
    """How many instructions the database executes for the first page of the inbox."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    assert isinstance(ours.database, Path)
    database = sqlite3.connect(ours.database)
    try:
        database.set_progress_handler(tick, 1)
        rows = database.execute(
            *pending_listing(SQLITE, TENANT, SuspensionFilter(), None, 51)
        ).fetchall()
    finally:
        database.close()
    assert len(rows) == 51
    return count


# Traces


async def test_a_trace_says_which_waits_a_run_had(ours: Bench) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    run_id = await ours.create(await ours.register([gate(), external()]))
    await answer(ours, run_id, ACCEPT)
    await answer(ours, run_id, {"orderId": "o1"}, "wait")

    tracing.ended((await ours.loaded(run_id)).state)
    await tracing.close()

    spans = {
        str((span.attributes or {}).get("openwop.node_id", "run")): span
        for span in exporter.get_finished_spans()
    }
    told = {
        name: (span.attributes or {}).get("openwop.interrupt_kind") for name, span in spans.items()
    }
    assert told == {"run": None, "gate": "approval", "wait": "external-event"}
    assert (spans["gate"].attributes or {})["openwop.interrupt_id"] == "int-gate:0"
    assert (spans["run"].attributes or {})["openwop.interrupt_count"] == 2
