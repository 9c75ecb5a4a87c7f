"""Forks of runs that wait, are paused, or have children."""

from __future__ import annotations

import pytest

from tests.fault.fork_edges.outside import MODES, Effects
from tests.fault.forking import answer, fork, forked, log_content
from tests.support.definitions import delay, node
from tests.support.in_process import TENANT, Bench, Clock, Gates
from wopr.protocol.forks import ForkMode
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

APPROVAL = {"title": "May it?", "actions": ["accept", "reject"]}
ACCEPT = {"action": "accept"}
NOW = PauseRun(drain_policy="immediate")


async def test_a_replay_of_a_waiting_run_can_be_answered_without_a_second_effect(
    ours: Bench, effects: Effects
) -> None:
    workflow = await ours.register(
        [node("ask", "core.approvalGate", config=APPROVAL), node("act", "test.effect")]
    )
    source = await ours.create(workflow)
    await ours.until(source, "waiting-approval")
    replay = await forked(ours, source, until=["waiting-approval"])

    await answer(ours, replay, "ask", ACCEPT)
    await ours.until(replay, "completed", "failed")

    assert effects.done == 0
    last = (await ours.log(replay))[-2]
    assert (last.type, last.payload["error"]["code"]) == ("node.failed", "replay_source_missing")


async def test_a_replay_that_is_paused_and_resumed_performs_no_effect(
    ours: Bench, effects: Effects
) -> None:
    workflow = await ours.register(
        [node("ask", "core.approvalGate", config=APPROVAL), node("act", "test.effect")]
    )
    source = await ours.create(workflow)
    await answer(ours, source, "ask", ACCEPT)
    await ours.until(source, "completed")
    replay = await fork(ours, source)
    await ours.until(replay, "completed")

    assert effects.done == 1
    assert await log_content(ours, replay) == await log_content(ours, source)


async def test_a_branch_starts_its_own_children(ours: Bench, gates: Gates) -> None:
    child = await ours.register([node("gate", "test.gate")])
    parent = await ours.register([node("sub", "core.subWorkflow", config={"workflowId": child})])
    source = await ours.create(parent)
    await gates.until_reached("gate")
    [dispatched] = [e for e in await ours.log(source) if e.type == "node.dispatched"]

    branch = await fork(ours, source, "branch", dispatched.sequence + 1)
    await ours.until_logged(branch, "node.dispatched", 2)
    gates.open("gate")
    await ours.until(branch, "completed")

    children = {
        e.payload["childRunId"] for e in await ours.log(branch) if "childRunId" in e.payload
    }
    assert len(children) == 2
    await ours.until(source, "completed")


@pytest.mark.parametrize("mode", MODES)
async def test_cancelling_a_fork_does_not_cancel_the_source_s_children(
    ours: Bench, gates: Gates, mode: ForkMode
) -> None:
    child = await ours.register([node("gate", "test.gate")])
    parent = await ours.register(
        [
            node("sub", "core.subWorkflow", config={"workflowId": child}),
            node("ask", "core.approvalGate", config=APPROVAL),
        ],
        edges=[],
    )
    source = await ours.create(parent)
    await gates.until_reached("gate")
    [dispatched] = [e for e in await ours.log(source) if e.type == "node.dispatched"]
    fork_id = await fork(ours, source, mode, dispatched.sequence + 1)
    await ours.until_logged(fork_id, "interrupt.requested")

    await ours.host.commands.cancel(TENANT, fork_id, "")
    gates.open("gate")

    await ours.until(dispatched.payload["childRunId"], "completed")
    await answer(ours, source, "ask", ACCEPT)
    await ours.until(source, "completed")


async def test_a_pause_in_the_copied_history_does_not_pause_the_branch(ours: Bench) -> None:
    workflow = await ours.register([delay("wait", 50_000), node("b")])
    source = await ours.create(workflow)
    await ours.host.commands.pause(TENANT, source, NOW)
    paused = next(e for e in await ours.log(source) if e.type == "run.paused")

    branch = await fork(ours, source, "branch", paused.sequence + 1)
    await ours.until_logged(branch, "node.started", 2)

    assert (await ours.row(branch)).status == "running"
    assert (await ours.row(source)).status == "paused"


async def test_a_run_that_was_paused_and_resumed_is_replayed_as_it_was(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([delay("wait", 100), node("b")])
    source = await ours.create(workflow)
    await ours.host.commands.pause(TENANT, source, NOW)
    await ours.host.commands.resume(TENANT, source)
    clock.now += 200
    await ours.wake(source)
    await ours.until(source, "completed")

    replay = await forked(ours, source)

    assert await log_content(ours, replay) == await log_content(ours, source)


async def test_a_run_that_is_paused_is_replayed_up_to_its_pause(ours: Bench) -> None:
    workflow = await ours.register([delay("wait", 50_000), node("b")])
    source = await ours.create(workflow)
    await ours.host.commands.pause(TENANT, source, NOW)

    replay = await forked(ours, source, until=["paused"])

    assert await log_content(ours, replay) == await log_content(ours, source)
