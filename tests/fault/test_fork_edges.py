"""Forks where something else goes on: people, time, children, effects, and a source that goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest

from tests.fault.forking import (
    answer,
    ended,
    fork,
    forked,
    stored,
    story,
)
from tests.fault.inprocess import (
    TENANT,
    Bench,
    Clock,
    Gates,
    bench,
    eventually,
    gate_types,
    numbered,
)
from tests.wire.definitions import delay, node, variable
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Gone, Unprocessable
from wopr.protocol.forks import ForkMode
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
MODES: tuple[ForkMode, ...] = ("replay", "branch")
APPROVAL = {"title": "May it?", "actions": ["accept", "reject"]}
ACCEPT = {"action": "accept"}
NOW = PauseRun(drain_policy="immediate")


class Effects:
    """An outside that counts what is done to it."""

    def __init__(self) -> None:
        self.done = 0

    def node_type(self) -> NodeType:
        async def effect(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
            self.done += 1
            return Completed({"number": self.done})

        return NodeType(type_id="test.effect", execute=effect, is_async=True)


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ours(
    tmp_path: Path, gates: Gates, effects: Effects, clock: Clock
) -> AsyncIterator[Bench]:
    async def note(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        await ctx.memory.put("notes", "remember this")
        return Completed()

    taking = NodeType(type_id="test.note", execute=note, is_async=True)
    types = (*gate_types(gates), effects.node_type(), taking)
    async with bench(tmp_path, *types, clock=clock, new_id=numbered()) as running:
        yield running


async def test_a_replay_of_a_run_that_waits_can_be_answered_and_still_performs_no_effect(
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
    assert await story(ours, replay) == await story(ours, source)


async def test_a_source_that_is_gone_while_its_history_is_copied_fails_the_fork(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([delay("wait", 10), node("end")])
    source = await ended_after(ours, clock, workflow, 20)
    copied = len(await stored(ours, source))
    await ours.host.store.expire(clock.now + 1, 10)

    with pytest.raises(Gone):
        await fork(ours, source, from_seq=copied)


async def ended_after(ours: Bench, clock: Clock, workflow: str, milliseconds: int) -> str:
    """Run a workflow that waits, and let that much time pass."""
    run_id = await ours.create(workflow)
    clock.now += milliseconds
    await ours.wake(run_id)
    await ours.until(run_id, "completed")
    return run_id


@pytest.mark.parametrize("mode", MODES)
async def test_a_fork_whose_source_vanishes_before_its_history_is_copied_ends_as_failed(
    ours: Bench, clock: Clock, mode: ForkMode
) -> None:
    workflow = await ours.register([delay("wait", 10), node("end")])
    source = await ended_after(ours, clock, workflow, 20)
    ours.host.advancer.wakeups.tasks, tasks = None, ours.host.advancer.wakeups.tasks
    left_alone = await fork(ours, source, mode, 3)
    await ours.host.store.expire(clock.now + 1, 10)
    ours.host.advancer.wakeups.tasks = tasks

    await ours.wake(left_alone)
    await ours.until(left_alone, "failed")

    error = (await ours.log(left_alone))[-1].payload["error"]
    assert error["code"] == "replay_source_missing"


async def test_a_branch_of_an_old_run_has_its_own_time(ours: Bench, clock: Clock) -> None:
    workflow = await ours.register([node("a"), delay("wait", 10), node("b")])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    clock.now += 20
    await ours.wake(source)
    await ours.until(source, "completed")
    clock.now += DAY_MS

    branch = await fork(ours, source, "branch", 3)
    await ours.until_logged(branch, "node.started", 2)
    clock.now += 20
    await ours.wake(branch)
    await ours.until(branch, "completed", "failed")

    assert (await ours.row(branch)).status == "completed"


async def test_a_replay_of_an_old_run_that_goes_beyond_the_record_has_the_records_time(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([delay("wait", 1000), node("b")])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    await ours.host.commands.cancel(TENANT, source, "")
    clock.now += DAY_MS

    first = await forked(ours, source)
    clock.now += DAY_MS
    second = await forked(ours, source)

    assert (await ours.row(first)).status == "completed"
    assert await story(ours, first) == await story(ours, second)
    times = [event.timestamp for event in await ours.log(first)]
    assert times == sorted(times)


async def test_a_node_under_way_at_the_fork_point_of_a_branch_begins_anew(
    ours: Bench, gates: Gates, clock: Clock
) -> None:
    workflow = await ours.register([node("gate", "test.gate", settings={"timeout": 1000})])
    source = await ours.create(workflow)
    await gates.until_reached("gate")
    gates.open("gate")
    await ours.until(source, "completed")
    clock.now += DAY_MS

    branch = await forked(ours, source, "branch", 2)

    assert (await ours.row(branch)).status == "completed"
    assert (await ours.types(branch)).count("node.started") == 2


async def test_a_branch_starts_children_of_its_own(ours: Bench, gates: Gates) -> None:
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
async def test_cancelling_a_fork_leaves_the_sources_children_alone(
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

    assert await story(ours, replay) == await story(ours, source)


async def test_a_fork_of_a_branch_keeps_what_the_branch_changed(ours: Bench) -> None:
    limited = await ours.register([node("a"), node("b")])
    source = await ended(ours, limited)
    branch = await fork(ours, source, "branch", 3, configurable={"recursionLimit": 7}, tags=["x"])
    await ours.until(branch, "completed")

    for mode, start in product(MODES, (0, 2)):
        again = await forked(ours, branch, mode, start)
        state = (await ours.loaded(again)).state
        assert (state.configurable, state.tags) == ({"recursionLimit": 7}, ("x",))
        assert (await ours.row(again)).tags == ("x",)


@pytest.mark.parametrize("start", [0, 4])
async def test_a_replay_of_a_branch_has_the_branchs_time(
    ours: Bench, clock: Clock, start: int
) -> None:
    workflow = await ours.register([node("a"), delay("wait", 1000), node("b"), delay("more", 10)])
    source = await ours.create(workflow, runTimeoutMs=60_000)
    clock.now += 1500
    await ours.wake(source)
    clock.now += 20
    await ours.wake(source)
    await ours.until(source, "completed")
    clock.now += DAY_MS
    branch = await fork(ours, source, "branch", 6)
    await ours.until_logged(branch, "node.started", 4)
    clock.now += 20
    await ours.wake(branch)
    await ours.until(branch, "completed")
    clock.now += DAY_MS

    replay = await forked(ours, branch, from_seq=start)

    assert await story(ours, replay) == await story(ours, branch)


async def test_a_run_that_is_paused_is_replayed_up_to_its_pause(ours: Bench) -> None:
    workflow = await ours.register([delay("wait", 50_000), node("b")])
    source = await ours.create(workflow)
    await ours.host.commands.pause(TENANT, source, NOW)

    replay = await forked(ours, source, until=["paused"])

    assert await story(ours, replay) == await story(ours, source)


async def test_a_fork_is_kept_as_long_as_any_other_run_from_its_own_end_on(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([node("a")])
    source = await ended(ours, workflow)
    clock.now += DAY_MS

    replay = await forked(ours, source)

    assert (await ours.row(replay)).ended_at == clock.now
    assert (await ours.row(replay)).created_at == clock.now


async def test_a_branch_from_after_a_memory_was_written_is_refused(ours: Bench) -> None:
    workflow = await ours.register([node("note", "test.note"), node("b")])
    source = await ended(ours, workflow)
    written = next(e for e in await ours.log(source) if e.type == "memory.written")

    with pytest.raises(Unprocessable) as refused:
        await fork(ours, source, "branch", written.sequence + 1)
    before = await forked(ours, source, "branch", written.sequence)
    replay = await forked(ours, source, "replay", written.sequence + 1)

    assert refused.value.code == "replay_memory_snapshot_unavailable"
    assert refused.value.details["oldestAvailableIdx"] == written.sequence
    assert (await ours.row(before)).status == "completed"
    assert await story(ours, replay) == await story(ours, source)


async def test_a_replay_that_would_need_what_is_only_on_record_masked_fails(ours: Bench) -> None:
    workflow = await ours.register(
        [
            node(
                "a", "core.setVariable", config={"name": "n", "expression": "size(variables.pin)"}
            ),
            node("b"),
        ],
        variables=[variable("pin", sensitive=True), variable("n", "number")],
    )
    source = await ours.create(workflow, {"pin": "4711"})
    await ours.until(source, "completed")

    replay = await forked(ours, source)

    log = await ours.log(replay)
    assert "replay.diverged" in [event.type for event in log]
    assert log[-1].type == "run.failed"
    assert log[-1].payload["error"]["code"] == "replay_source_missing"


async def test_a_replay_that_does_not_need_what_is_masked_goes_well(ours: Bench) -> None:
    workflow = await ours.register(
        [node("a", "core.setVariable", config={"name": "n", "value": 1}), node("b")],
        variables=[variable("pin", sensitive=True), variable("n", "number")],
    )
    source = await ours.create(workflow, {"pin": "4711"})
    await ours.until(source, "completed")

    replay = await forked(ours, source)

    assert await story(ours, replay) == await story(ours, source)


async def test_a_source_is_never_written_to(ours: Bench, effects: Effects) -> None:
    workflow = await ours.register([node("a"), node("act", "test.effect"), node("b")])
    source = await ended(ours, workflow)
    before, row = await stored(ours, source), await ours.row(source)

    for mode in MODES:
        for start in range(len(before) + 1):
            await forked(ours, source, mode, start)

    assert await stored(ours, source) == before
    assert await ours.row(source) == row


async def test_a_fork_of_a_running_run_takes_any_event_that_is_written(
    ours: Bench, gates: Gates
) -> None:
    workflow = await ours.register([node("a"), node("gate", "test.gate")])
    source = await ours.create(workflow)
    await gates.until_reached("gate")
    count = len(await stored(ours, source))
    gates.open("gate")

    for start in range(count + 1):
        branch = await forked(ours, source, "branch", start)
        assert (await ours.row(branch)).status == "completed"


async def test_a_long_history_is_copied_in_pieces_while_other_runs_go_on(
    ours: Bench, clock: Clock
) -> None:
    nodes = [node(f"n{number}") for number in range(800)]
    long = await ours.register(nodes)
    short = await ours.register([node("a")])
    source = await ended(ours, long, recursionLimit=1000)
    count = len(await stored(ours, source))

    copy = await fork(ours, source, "branch", count)
    lengths = [(await ours.row(copy)).last_sequence]
    others = 0

    async def is_over() -> bool:
        nonlocal others
        await ended(ours, short)
        others += 1
        lengths.append((await ours.row(copy)).last_sequence)
        return lengths[-1] == count - 1

    await eventually(is_over)
    assert others > 1
    assert len(set(lengths)) > 2
    assert await story(ours, copy) == await story(ours, source)
