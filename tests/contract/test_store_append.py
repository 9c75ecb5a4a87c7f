from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.rows import (
    T0,
    TENANT,
    answer,
    artifact,
    batch,
    ended,
    events,
    found,
    log,
    run,
)
from wopr.protocol.errors import Conflict, SequenceTaken
from wopr.store.port import Batch, PendingCommand, RunFilter, Store

pytestmark = pytest.mark.anyio


async def append_or_lose(store: Store, given: Batch) -> bool:
    try:
        await store.append(TENANT, [given])
    except SequenceTaken:
        return False
    return True


async def test_a_run_reads_back_as_it_was_written(store: Store) -> None:
    row = run(
        last=1,
        wake_at=T0 + 9,
        parent_run_id="parent",
        parent_node_id="call",
        tags=("blue", "green"),
        sealed=b"sealed",
        pending_command=b"pause",
    )

    await store.append(TENANT, [Batch(run=row, first=0, events=events(0, 2))])

    assert await store.run(TENANT, "run-1") == row
    assert await store.read(TENANT, "run-1") == list(events(0, 2))


async def test_the_beginnings_of_several_logs_are_read_together(store: Store) -> None:
    rows = {name: run(name, 2, wake_at=T0 + 9, tags=("blue",)) for name in ("a", "b", "c")}
    for row in rows.values():
        await store.append(TENANT, [Batch(run=row, first=0, events=events(0, 3))])

    loaded = await store.load_runs(TENANT, ["a", "c", "unknown"], 2)

    assert {found.row.run_id: found.row for found in loaded} == {"a": rows["a"], "c": rows["c"]}
    assert [list(found.events) for found in loaded] == [list(events(0, 2))] * 2
    [whole] = await store.load_runs(TENANT, ["b"], 5)
    assert list(whole.events) == list(events(0, 3))


async def test_any_text_is_stored_and_found_again(store: Store) -> None:
    text = "\0 \x1a \x1a0 \u2028 \\u0000 é"
    step = batch(text, tags=(text,), parent_run_id=text, artifacts=[artifact(text)])

    await store.append(TENANT, [step])
    await store.append(TENANT, [batch("other", parent_run_id="\x1a")])

    assert await store.run(TENANT, text) == step.run
    assert await log(store, text) == [b"0"]
    assert [found.row for found in await store.load_runs(TENANT, [text], 5)] == [step.run]
    assert await store.artifact(TENANT, text, text) == artifact(text)
    for where in (RunFilter(tag=text), RunFilter(parent_run_id=text)):
        assert (await store.runs(TENANT, where, None, 10)).runs == (step.run,)
    assert sorted(await store.unfinished_runs(None, 10)) == [(TENANT, text), (TENANT, "other")]


async def test_a_page_ends_with_the_event_that_reaches_the_requested_size(
    store: Store,
) -> None:
    written = events(0, 5)
    await store.append(TENANT, [Batch(run=run(last=4), first=0, events=written)])
    one = len(written[0].body)

    sizes = [1, one, one + 1, 3 * one, 100 * one]
    pages = [await store.read(TENANT, "run-1", 0, 100, most_bytes=size) for size in sizes]
    later = await store.read(TENANT, "run-1", 3, 1, most_bytes=100 * one)

    assert [len(page) for page in pages] == [1, 1, 2, 3, 5]
    assert pages[-1] == list(written)
    assert later == [written[3]]


async def test_the_log_is_read_in_pages(store: Store) -> None:
    await store.append(TENANT, [batch(count=250)])

    page = await store.read(TENANT, "run-1", start=100, limit=3)
    rest = await store.read(TENANT, "run-1", start=240, limit=1000)

    assert [event.sequence for event in page] == [100, 101, 102]
    assert [event.sequence for event in rest] == list(range(240, 250))


async def test_a_run_cannot_be_created_twice(store: Store) -> None:
    await store.append(TENANT, [batch(mark="first ")])

    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch(mark="second ")])

    assert await log(store) == [b"first 0"]


@pytest.mark.parametrize("first", [1, 3, 7])
async def test_a_batch_must_continue_the_log(store: Store, first: int) -> None:
    await store.append(TENANT, [batch(count=2)])

    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch(first=first)])

    assert await log(store) == [b"0", b"1"]


async def test_a_batch_for_an_unknown_run_must_create_it(store: Store) -> None:
    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch(first=1)])

    assert await store.run(TENANT, "run-1") is None


async def test_one_of_fifty_writers_gets_each_sequence(store: Store) -> None:
    await store.append(TENANT, [batch()])

    for sequence in range(1, 5):
        rivals = [batch(first=sequence, mark=f"{n}:") for n in range(50)]
        won = await asyncio.gather(*(append_or_lose(store, rival) for rival in rivals))
        assert sum(won) == 1
        assert (await log(store))[-1] == f"{won.index(True)}:{sequence}".encode()

    assert len(await log(store)) == 5


async def test_many_writers_create_a_run_once(store: Store) -> None:
    won = await asyncio.gather(*(append_or_lose(store, batch(mark=f"{n}:")) for n in range(50)))

    assert sum(won) == 1
    assert await log(store) == [f"{won.index(True)}:0".encode()]


@pytest.mark.parametrize(
    "refused",
    [batch("run-1"), batch("run-1", first=2), batch("unknown", first=1)],
    ids=["a run that exists", "a gap", "an unknown run"],
)
async def test_a_refused_batch_refuses_its_whole_call(store: Store, refused: Batch) -> None:
    await store.append(TENANT, [batch("run-1")])

    with pytest.raises(SequenceTaken):
        await store.append(
            TENANT, [batch("run-2", tags=("t",), idempotency=answer(), wakes=["run-1"]), refused]
        )

    assert await store.run(TENANT, "run-2") is None
    assert await log(store, "run-2") == []
    assert await store.idempotency_record(TENANT, b"k") is None
    assert (await found(store)).wake_at is None
    assert (await store.runs(TENANT, RunFilter(tag="t"), None, 9)).runs == ()


async def test_batches_of_one_run_can_follow_each_other_in_one_call(store: Store) -> None:
    await store.append(TENANT, [batch(count=2), batch(first=2), ended(first=3)])

    assert await log(store) == [b"0", b"1", b"2", b"3"]
    assert (await found(store)).status == "completed"


async def test_a_batch_without_events_changes_only_the_row(store: Store) -> None:
    await store.append(TENANT, [batch(count=2)])

    await store.append(TENANT, [batch(first=2, count=0, status="paused", updated_at=T0 + 7)])

    assert await store.run(TENANT, "run-1") == run(last=1, status="paused", updated_at=T0 + 7)
    assert await log(store) == [b"0", b"1"]


async def test_a_stale_batch_without_events_is_refused_too(store: Store) -> None:
    await store.append(TENANT, [batch(count=2)])

    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch(first=1, count=0, status="paused")])

    assert (await found(store)).status == "running"


@pytest.mark.parametrize(
    "wrong",
    [
        Batch(run=run(last=5), first=0, events=events(0, 2)),
        Batch(run=run(last=1), first=0, events=(*events(0, 1), *events(2, 1))),
        Batch(run=run(last=-1), first=0),
    ],
    ids=["a wrong last sequence", "a gap", "no events"],
)
async def test_a_contradictory_batch_is_a_programming_error(store: Store, wrong: Batch) -> None:
    with pytest.raises(ValueError, match=r"last_sequence|numbered|at least one"):
        await store.append(TENANT, [wrong])

    assert await store.run(TENANT, "run-1") is None


async def test_an_ended_run_has_no_wake_up_no_pending_command_and_no_encrypted_values(
    store: Store,
) -> None:
    await store.append(TENANT, [batch(sealed=b"secret", wake_at=T0)])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0)

    await store.append(TENANT, [ended(wake_at=T0, sealed=b"secret")])

    row = await found(store)
    assert (row.wake_at, row.pending_command, row.sealed) == (None, None, None)
    assert (row.ended_at, row.snapshot) == (T0 + 5, b"{}")


async def test_a_run_created_as_ended_has_none_of_them_either(store: Store) -> None:
    await store.append(
        TENANT, [ended(first=0, wake_at=T0, sealed=b"secret", pending_command=b"pause")]
    )

    row = await found(store)
    assert (row.wake_at, row.pending_command, row.sealed) == (None, None, None)


async def test_an_append_unaware_of_a_pending_command_keeps_it(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)

    await store.append(TENANT, [batch(first=1, pending_command=None, wake_at=T0 + 900)])

    row = await found(store)
    assert (row.pending_command, row.wake_at) == (b"pause", T0 + 3)


@pytest.mark.parametrize(
    ("asked", "kept"), [(None, T0 + 3), (T0 + 1, T0 + 1), (T0 + 3, T0 + 3), (T0 + 9, T0 + 3)]
)
async def test_the_wake_up_of_a_pending_command_is_never_delayed(
    store: Store, asked: int | None, kept: int
) -> None:
    await store.append(TENANT, [batch()])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)

    await store.append(TENANT, [batch(first=1, wake_at=asked)])

    assert (await found(store)).wake_at == kept


async def test_a_pending_command_without_a_wake_up_gets_the_next_one(store: Store) -> None:
    await store.append(TENANT, [batch(pending_command=b"pause")])

    await store.append(TENANT, [batch(first=1, wake_at=T0 + 9)])

    assert (await found(store)).wake_at == T0 + 9


async def test_without_a_pending_command_the_append_sets_the_wake_up(store: Store) -> None:
    await store.append(TENANT, [batch(wake_at=T0 + 3)])

    await store.append(TENANT, [batch(first=1, wake_at=T0 + 9)])

    assert (await found(store)).wake_at == T0 + 9


async def test_a_writer_aware_of_a_pending_command_sets_the_wake_up_and_keeps_the_command(
    store: Store,
) -> None:
    await store.append(TENANT, [batch()])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)

    await store.append(TENANT, [batch(first=1, pending_command=b"pause", wake_at=T0 + 9)])

    row = await found(store)
    assert (row.pending_command, row.wake_at) == (b"pause", T0 + 9)


async def test_a_pending_command_is_removed_by_the_events_that_carry_it_out(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)

    await store.append(
        TENANT, [replace(batch(first=1, pending_command=b"pause"), completes_command=True)]
    )

    row = await found(store)
    assert (row.pending_command, row.wake_at) == (None, None)


async def test_carrying_out_a_command_keeps_the_one_that_replaced_it(store: Store) -> None:
    cancelling = Batch(
        run=run("parent"),
        first=0,
        events=events(0, 1),
        commands=(PendingCommand(run_id="run-1", body=b"x"),),
    )
    await store.append(TENANT, [batch()])
    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)
    await store.append(TENANT, [cancelling])

    await store.append(
        TENANT, [replace(batch(first=1, pending_command=b"pause"), completes_command=True)]
    )

    row = await found(store)
    assert (row.pending_command, row.wake_at) == (b"x", T0)


async def test_a_second_command_does_not_replace_the_first(store: Store) -> None:
    await store.append(TENANT, [batch()])

    assert await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 3)
    assert not await store.set_pending_command(TENANT, "run-1", b"another", T0 + 8)

    row = await found(store)
    assert (row.pending_command, row.wake_at) == (b"pause", T0 + 3)


async def test_an_ended_or_missing_run_accepts_no_command(store: Store) -> None:
    await store.append(TENANT, [ended(first=0)])

    assert not await store.set_pending_command(TENANT, "run-1", b"pause", T0)
    assert not await store.set_pending_command(TENANT, "unknown", b"pause", T0)
    assert (await found(store)).pending_command is None


async def test_a_batch_wakes_and_commands_other_runs_that_have_not_ended(store: Store) -> None:
    await store.append(TENANT, [batch("parent"), batch("child"), ended("late", first=0)])
    step = Batch(
        run=run(last=0, updated_at=T0 + 4),
        first=0,
        events=events(0, 1),
        wakes=("parent", "late", "unknown"),
        commands=(
            PendingCommand(run_id="child", body=b"cancel"),
            PendingCommand(run_id="late", body=b"cancel"),
        ),
    )

    await store.append(TENANT, [step])

    assert (await found(store, "parent")).wake_at == T0 + 4
    child = await found(store, "child")
    assert (child.wake_at, child.pending_command) == (T0 + 4, b"cancel")
    late = await found(store, "late")
    assert (late.wake_at, late.pending_command) == (None, None)


async def test_a_wake_up_is_kept_when_the_same_call_writes_the_row(store: Store) -> None:
    await store.append(TENANT, [batch("parent")])

    await store.append(
        TENANT,
        [batch("child", wakes=["parent"], updated_at=T0 + 4), batch("parent", first=1)],
    )

    assert (await found(store, "parent")).wake_at == T0 + 4


async def test_artifacts_are_stored_with_their_batch_and_the_later_one_wins(store: Store) -> None:
    await store.append(TENANT, [batch(artifacts=[artifact("a"), artifact("b")])])

    await store.append(TENANT, [batch(first=1, artifacts=[artifact("b", b"new")])])

    assert await store.artifact(TENANT, "run-1", "a") == artifact("a")
    assert await store.artifact(TENANT, "run-1", "b") == artifact("b", b"new")
    assert await store.artifact(TENANT, "run-1", "c") is None


async def test_a_batch_stores_the_response_to_its_request(store: Store) -> None:
    await store.append(TENANT, [batch(idempotency=answer())])

    assert await store.idempotency_record(TENANT, b"k") == answer()


async def test_a_second_request_with_the_same_key_writes_nothing(store: Store) -> None:
    await store.append(TENANT, [batch(idempotency=answer(body=b"first"))])

    with pytest.raises(Conflict) as refused:
        await store.append(TENANT, [batch("run-2", idempotency=answer(body=b"second"))])

    assert refused.value.code == "idempotency_in_flight"
    assert await store.run(TENANT, "run-2") is None
    assert await store.idempotency_record(TENANT, b"k") == answer(body=b"first")
