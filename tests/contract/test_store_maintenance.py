from __future__ import annotations

import asyncio

import pytest

from tests.support.rows import (
    OTHER,
    T0,
    TENANT,
    answer,
    artifact,
    batch,
    ended,
    found,
    invocation,
    log,
)
from wopr.store.port import RunFilter, Store

pytestmark = pytest.mark.anyio


async def test_due_runs_are_listed_earliest_first_over_all_tenants(store: Store) -> None:
    await store.append(TENANT, [batch("late", wake_at=T0 + 9), batch("soon", wake_at=T0 + 2)])
    await store.append(OTHER, [batch("theirs", wake_at=T0 + 1), batch("waiting")])

    assert await store.due_runs(T0 + 2, 10) == [(OTHER, "theirs"), (TENANT, "soon")]
    assert await store.due_runs(T0 + 9, 1) == [(OTHER, "theirs")]
    assert await store.due_runs(T0, 10) == []
    assert await store.next_due(0) == T0 + 1
    assert await store.next_due(T0 + 1) == T0 + 2


async def test_due_runs_of_each_tenant_are_found_behind_many_of_another(store: Store) -> None:
    await store.append(TENANT, [batch(f"run-{n}", wake_at=T0 + n) for n in range(9)])
    await store.append(OTHER, [batch("theirs", wake_at=T0 + 10), batch("later", wake_at=T0 + 99)])

    found = await store.due_runs_of_each_tenant(T0 + 20, 2)

    assert sorted(found) == sorted([(TENANT, "run-0"), (TENANT, "run-1"), (OTHER, "theirs")])
    assert await store.due_runs_of_each_tenant(T0 - 1, 2) == []


async def test_an_ended_run_or_one_without_a_wake_up_time_is_never_due(store: Store) -> None:
    await store.append(TENANT, [batch(wake_at=T0), batch("run-2", wake_at=T0)])

    await store.append(TENANT, [ended(), batch("run-2", first=1, wake_at=None)])

    assert await store.due_runs(T0 + 99, 10) == []
    assert await store.next_due(0) is None


async def test_a_pending_command_makes_a_run_due(store: Store) -> None:
    await store.append(TENANT, [batch(wake_at=T0 + 900)])

    await store.set_pending_command(TENANT, "run-1", b"pause", T0 + 1)

    assert await store.due_runs(T0 + 1, 10) == [(TENANT, "run-1")]


async def test_unfinished_runs_are_paged_for_recovery(store: Store) -> None:
    await store.append(TENANT, [batch(f"run-{n}") for n in range(5)])
    await store.append(OTHER, [batch("theirs")])
    await store.append(TENANT, [ended("run-2")])

    first = await store.unfinished_runs(None, 3)
    second = await store.unfinished_runs(first[-1], 3)

    assert first == [(TENANT, "run-0"), (TENANT, "run-1"), (TENANT, "run-3")]
    assert second == [(TENANT, "run-4"), (OTHER, "theirs")]


async def test_runs_that_have_not_ended_are_counted_by_status_over_all_tenants(
    store: Store,
) -> None:
    assert await store.open_run_counts() == {}
    await store.append(TENANT, [batch("run-1"), batch("run-2"), ended("run-3", first=0)])
    await store.append(OTHER, [batch("theirs"), batch("idle", status="paused")])

    assert await store.open_run_counts() == {"running": 3, "paused": 1}


async def test_expired_runs_are_deleted_with_all_their_rows(store: Store) -> None:
    old = ended("old", first=0, at=T0 + 1, tags=("blue",), artifacts=[artifact()])
    await store.append(TENANT, [old, ended("new", first=0, at=T0 + 2), batch("open")])

    assert await store.delete_expired_runs(T0 + 2, 10) == 1

    assert await store.run(TENANT, "old") is None
    assert await log(store, "old") == []
    assert await store.artifact(TENANT, "old", "a-1") is None
    assert (await store.runs(TENANT, RunFilter(tag="blue"), None, 10)).runs == ()
    listed = await store.runs(TENANT, RunFilter(), None, 10)
    assert [row.run_id for row in listed.runs] == ["open", "new"]
    assert await log(store, "new") == [b"0"]


async def test_expiry_deletes_the_oldest_first_up_to_the_requested_number(store: Store) -> None:
    await store.append(TENANT, [ended(f"run-{n:03}", first=0, at=T0 + 200 - n) for n in range(150)])

    assert await store.delete_expired_runs(T0 + 999, 140) == 140

    assert len((await store.runs(TENANT, RunFilter(), None, 500)).runs) == 10
    await found(store, "run-009")
    assert await store.run(TENANT, "run-010") is None
    assert await store.delete_expired_runs(T0 + 999, 140) == 10
    assert await store.delete_expired_runs(T0 + 999, 140) == 0


async def test_long_logs_expire_too(store: Store) -> None:
    await store.append(
        TENANT,
        [
            batch(f"run-{n}", count=2500, status="failed", ended_at=T0 + n, snapshot=b"{}")
            for n in range(3)
        ],
    )

    assert await store.delete_expired_runs(T0 + 999, 10) == 3

    assert (await store.runs(TENANT, RunFilter(), None, 10)).runs == ()


async def test_idempotency_records_are_deleted_by_age(store: Store) -> None:
    for n in range(3):
        await store.put_idempotency_record(TENANT, answer(bytes([n]), at=T0 + n))
        await store.claim_invocation(TENANT, invocation(f"i-{n}", at=T0 + n))

    await store.delete_idempotency_records(T0 + 2, T0 + 1)

    kept = [n for n in range(3) if await store.idempotency_record(TENANT, bytes([n])) is not None]
    assert kept == [2]
    again = [
        await store.claim_invocation(TENANT, invocation(f"i-{n}", at=T0 + 50)) for n in range(3)
    ]
    assert [record.claimed_at for record in again] == [T0 + 50, T0 + 1, T0 + 2]


async def test_an_active_run_keeps_its_recorded_invocations(store: Store) -> None:
    await store.append(TENANT, [batch("waits"), batch("ended", status="failed", ended_at=T0)])
    for run_id in ("waits", "ended"):
        await store.claim_invocation(TENANT, invocation(f"i-{run_id}", run_id))

    await store.delete_idempotency_records(T0 + 9, T0 + 9)

    names = ("i-waits", "i-ended")
    again = [await store.claim_invocation(TENANT, invocation(name, at=T0 + 50)) for name in names]
    assert [record.claimed_at for record in again] == [T0, T0 + 50]


async def test_any_number_of_records_is_deleted_in_one_call(store: Store) -> None:
    keys = [n.to_bytes(2, "big") for n in range(1500)]
    await asyncio.gather(*(store.put_idempotency_record(TENANT, answer(key)) for key in keys))

    await store.delete_idempotency_records(T0 + 1, T0 + 1)

    assert [key for key in keys if await store.idempotency_record(TENANT, key) is not None] == []


async def test_an_unfinished_run_keeps_its_idempotency_records(store: Store) -> None:
    await store.append(TENANT, [batch(idempotency=answer())])

    assert await store.delete_expired_runs(T0 + 999, 10) == 0

    assert await store.idempotency_record(TENANT, b"k") == answer()
