"""Forks and their source: deleted, masked, still running, and never written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fault.fork_edges.outside import MODES, Effects
from tests.fault.forking import ended, fork, forked, log_content, stored
from tests.support.definitions import delay, node, variable
from tests.support.eventually import eventually_async
from tests.support.in_process import Bench, Clock, Gates
from wopr.protocol.errors import Unprocessable
from wopr.protocol.forks import ForkMode
from wopr.store.port import Batch

pytestmark = pytest.mark.anyio


async def test_a_source_deleted_while_its_history_is_copied_fails_the_fork(
    ours: Bench, clock: Clock
) -> None:
    workflow = await ours.register([delay("wait", 10), node("end")])
    source = await ended_after(ours, clock, workflow, 20)
    copied = len(await stored(ours, source))
    await ours.host.store.delete_expired_runs(clock.now + 1, 10)

    with pytest.raises(Unprocessable) as refused:
        await fork(ours, source, from_seq=copied)

    assert refused.value.code == "replay_memory_snapshot_unavailable"
    assert refused.value.details == {
        "sourceRunId": source,
        "fromSeq": copied,
        "reason": "retention_expired",
    }


async def ended_after(ours: Bench, clock: Clock, workflow: str, milliseconds: int) -> str:
    """Run a workflow that waits, and let this time pass."""
    run_id = await ours.create(workflow)
    clock.now += milliseconds
    await ours.wake(run_id)
    await ours.until(run_id, "completed")
    return run_id


@pytest.mark.parametrize("mode", MODES)
async def test_a_fork_whose_source_is_deleted_before_the_copy_ends_as_failed(
    ours: Bench, clock: Clock, mode: ForkMode
) -> None:
    workflow = await ours.register([delay("wait", 10), node("end")])
    source = await ended_after(ours, clock, workflow, 20)
    ours.host.advancer.wakeups.tasks, tasks = None, ours.host.advancer.wakeups.tasks
    left_alone = await fork(ours, source, mode, 3)
    await ours.host.store.delete_expired_runs(clock.now + 1, 10)
    ours.host.advancer.wakeups.tasks = tasks

    await ours.wake(left_alone)
    await ours.until(left_alone, "failed")

    error = (await ours.log(left_alone))[-1].payload["error"]
    assert error["code"] == "replay_source_missing"


async def test_a_branch_from_after_a_memory_write_is_refused(ours: Bench) -> None:
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
    assert await log_content(ours, replay) == await log_content(ours, source)


async def test_a_replay_that_needs_masked_values_fails(ours: Bench) -> None:
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


async def test_a_replay_that_needs_no_masked_values_completes(ours: Bench) -> None:
    workflow = await ours.register(
        [node("a", "core.setVariable", config={"name": "n", "value": 1}), node("b")],
        variables=[variable("pin", sensitive=True), variable("n", "number")],
    )
    source = await ours.create(workflow, {"pin": "4711"})
    await ours.until(source, "completed")

    replay = await forked(ours, source)

    assert await log_content(ours, replay) == await log_content(ours, source)


async def test_forking_never_writes_to_the_source(ours: Bench, effects: Effects) -> None:
    workflow = await ours.register([node("a"), node("act", "test.effect"), node("b")])
    source = await ended(ours, workflow)
    before, row = await stored(ours, source), await ours.row(source)

    for mode in MODES:
        for start in range(len(before) + 1):
            await forked(ours, source, mode, start)

    assert await stored(ours, source) == before
    # Only the number of its descendants grows.
    assert replace(await ours.row(source), descendants=row.descendants) == row


async def test_a_fork_of_a_running_run_accepts_any_written_event(ours: Bench, gates: Gates) -> None:
    workflow = await ours.register([node("a"), node("gate", "test.gate")])
    source = await ours.create(workflow)
    await gates.until_reached("gate")
    count = len(await stored(ours, source))
    gates.open("gate")

    for start in range(count + 1):
        branch = await forked(ours, source, "branch", start)
        assert (await ours.row(branch)).status == "completed"


async def test_a_long_history_is_copied_in_parts_while_other_runs_continue(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(f"n{number}") for number in range(800)]
    long = await ours.register(nodes)
    short = await ours.register([node("a")])
    source = await ended(ours, long, recursionLimit=1000)
    count = len(await stored(ours, source))

    append = ours.host.store.append
    lengths: list[int] = []

    async def appended(tenant: str, batches: Sequence[Batch]) -> bool:
        has_written = await append(tenant, batches)
        if batches[0].run.fork is not None:
            lengths.append(batches[0].run.last_sequence)
            await ended(ours, short)
        return has_written

    monkeypatch.setattr(ours.host.store, "append", appended)

    copy = await fork(ours, source, "branch", count)

    async def is_over() -> bool:
        return (await ours.row(copy)).last_sequence == count - 1

    await eventually_async(is_over)
    assert len(set(lengths)) > 2
    assert lengths == sorted(lengths)
    assert await log_content(ours, copy) == await log_content(ours, source)
