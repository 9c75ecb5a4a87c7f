from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.waiting import ANN, answer, inbox, payloads
from tests.support.definitions import delay, edge, node
from tests.support.in_process import NOON, TENANT, Bench, Clock, bench, numbered
from tests.support.interrupts import ACCEPT, external, gate
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Conflict, NotFound, Unprocessable

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
MINUTE_MS = 60_000

ASK = gate(
    "gate",
    "core.clarificationGate",
    questions=[{"id": "q", "question": "?"}],
    timeoutMs=MINUTE_MS,
)
CUSTOM = {"kind": "custom", "data": {"customKind": "k"}, "timeoutMs": MINUTE_MS}
GOVERNED = {"requiredRole": "admin", "timeoutSec": 60}
# Each kind of wait with a timeout of a minute, its answer, and the events of its end only.
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
    assert resolved.get("action") == ("timeout" if kind in ("approval", "governance") else None)
    assert resolved["resolvedBy"] == "system:timeout"
    assert (resolved["outcome"], resolved["reason"]) == ("rejected", "timeout")
    for received in await payloads(ours, run_id, "approval.received"):
        assert received == {"nodeId": "gate", "action": "timeout"}


async def test_a_timed_out_conversation_is_first_closed_by_the_host(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([KINDS["conversation"][0]]))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    [closed] = await payloads(ours, run_id, "conversation.closed")
    assert closed["outcome"] is None
    assert closed["finalTurn"]["role"] == "system"
    assert "timed out" in closed["finalTurn"]["content"]
    types = await ours.types(run_id)
    assert types.index("conversation.closed") < types.index("interrupt.resolved")


async def test_a_handled_timeout_does_not_fail_the_run(ours: Bench) -> None:
    handled = [edge("gate", "after", triggerRule="any_failed"), edge("after", "second")]
    nodes = [gate(timeoutMs=MINUTE_MS), node("after"), gate("second")]
    run_id = await ours.create(await ours.register(nodes, edges=handled))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "waiting-approval"
    with pytest.raises(Conflict, match="system:timeout"):
        await answer(ours, run_id, ACCEPT)
    assert (await answer(ours, run_id, ACCEPT, "second")).status == "completed"


async def test_a_run_that_continues_after_a_timeout_no_longer_waits(
    ours: Bench,
) -> None:
    handled = [edge("gate", "after", triggerRule="any_failed")]
    nodes = [gate(timeoutMs=MINUTE_MS), delay("after", MINUTE_MS)]
    run_id = await ours.create(await ours.register(nodes, edges=handled))
    ours.clock.now += MINUTE_MS

    await ours.wake(run_id)

    assert (await ours.row(run_id)).status == "running"


async def test_a_wait_does_not_count_against_the_node_s_time(ours: Bench) -> None:
    patient = gate() | {"settings": {"timeout": 1000}}
    run_id = await ours.create(await ours.register([patient]))
    ours.clock.now += DAY_MS

    assert (await answer(ours, run_id, ACCEPT)).status == "completed"


# Restarts


@every_kind
async def test_a_wait_can_be_answered_days_and_a_restart_later(tmp_path: Path, kind: str) -> None:
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
async def test_a_deadline_that_passed_while_the_host_was_down_applies(
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


async def test_a_restart_does_not_extend_a_wait(tmp_path: Path) -> None:
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


# Late answers


@every_kind
async def test_an_answer_to_a_cancelled_run_is_refused_with_the_reason(
    ours: Bench, kind: str
) -> None:
    waits, value, _ = KINDS[kind]
    run_id = await ours.create(await ours.register([waits]))
    await ours.host.commands.cancel(TENANT, run_id, "enough")

    with pytest.raises(Unprocessable) as told:
        await answer(ours, run_id, value)

    assert told.value.code == "interrupt_cancelled"
    assert await inbox(ours, run_id) == []


@every_kind
async def test_a_second_answer_is_refused_with_the_first_author(ours: Bench, kind: str) -> None:
    waits, value, _ = KINDS[kind]
    run_id = await ours.create(await ours.register([waits]))
    await answer(ours, run_id, value)

    with pytest.raises(Conflict) as told:
        await answer(ours, run_id, value)

    assert told.value.code == "interrupt_already_resolved"
    assert told.value.details["resolvedBy"] == "ann"


async def test_another_tenant_s_run_is_not_found(ours: Bench) -> None:
    run_id = await ours.create(await ours.register([gate()]))

    with pytest.raises(NotFound):
        await ours.host.commands.resolve_interrupt("globex", run_id, "gate", ACCEPT, ANN)


# Delays


@pytest.mark.parametrize("length", [MINUTE_MS + 1000, 20 * DAY_MS])
async def test_a_delay_of_any_length_is_exact_across_a_restart(tmp_path: Path, length: int) -> None:
    clock, new_id = Clock(), numbered()
    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        run_id = await ours.create(await ours.register([delay("wait", length)]))
        clock.now += length - 1
        await ours.wake(run_id)
        assert (await ours.row(run_id)).status == "running"

    async with bench(tmp_path, clock=clock, new_id=new_id) as ours:
        await ours.wake(run_id)
        assert (await ours.row(run_id)).status == "running"
        clock.now += 1
        await ours.wake(run_id)
        assert (await ours.row(run_id)).status == "completed"
