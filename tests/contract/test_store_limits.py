from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from tests.support.rows import OTHER, TENANT, batch, ended
from wopr.protocol.errors import DescendantLimit, QuotaExceeded
from wopr.store.port import Batch, Store
from wopr.store.port.runs import CreationLimits

pytestmark = pytest.mark.anyio

FEW = CreationLimits(active_runs=2, descendants=2)


def limited(new: Batch, limits: CreationLimits = FEW) -> Batch:
    return replace(new, limits=limits)


def child(run_id: str, root: str = "run-1") -> Batch:
    return limited(
        batch(run_id, root_run_id=root, parent_run_id=root), CreationLimits(descendants=2)
    )


async def test_active_runs_are_counted_from_their_creation_to_their_end(store: Store) -> None:
    await store.append(TENANT, [batch("run-1")])
    await store.append(TENANT, [batch("run-2")])
    await store.append(TENANT, [batch("run-2", 1)])
    assert await store.active_runs(TENANT) == 2

    await store.append(TENANT, [ended("run-1")])

    assert await store.active_runs(TENANT) == 1
    assert await store.active_runs(OTHER) == 0


async def test_a_run_that_ends_with_its_first_batch_is_never_active(store: Store) -> None:
    await store.append(TENANT, [ended("run-1", 0)])

    assert await store.active_runs(TENANT) == 0


async def test_observed_runs_are_not_counted_as_active(store: Store) -> None:
    await store.append(TENANT, [batch("kahn-run-1")])
    await store.append(TENANT, [batch("kahn-run-2")])
    await store.append(TENANT, [ended("kahn-run-1")])

    assert await store.active_runs(TENANT) == 0


async def test_a_run_beyond_the_limit_of_active_runs_is_refused_and_nothing_is_written(
    store: Store,
) -> None:
    await store.append(TENANT, [limited(batch("run-1"))])
    await store.append(TENANT, [limited(batch("run-2"))])

    with pytest.raises(QuotaExceeded) as refused:
        await store.append(TENANT, [batch("run-1", 1), limited(batch("run-3"))])

    assert (refused.value.details["limit"], refused.value.details["current"]) == (2, 2)
    assert await store.run(TENANT, "run-3") is None
    assert await store.active_runs(TENANT) == 2
    row = await store.run(TENANT, "run-1")
    assert row is not None
    assert row.last_sequence == 0


async def test_runs_of_one_call_count_for_each_other(store: Store) -> None:
    with pytest.raises(QuotaExceeded):
        await store.append(TENANT, [limited(batch(f"run-{n}")) for n in range(3)])

    assert await store.active_runs(TENANT) == 0


async def test_descendants_are_counted_on_the_row_of_the_root(store: Store) -> None:
    await store.append(TENANT, [batch("run-1")])
    await store.append(TENANT, [child("run-2")])
    await store.append(TENANT, [batch("run-1", 1)])
    await store.append(TENANT, [child("run-3")])

    with pytest.raises(DescendantLimit) as refused:
        await store.append(TENANT, [batch("run-1", 2), child("run-4")])

    assert refused.value.details == {"limit": 2, "current": 2, "rootRunId": "run-1"}
    root, grandchild = await store.run(TENANT, "run-1"), await store.run(TENANT, "run-3")
    assert root is not None
    assert (root.descendants, root.root_run_id) == (2, None)
    assert root.last_sequence == 1
    assert grandchild is not None
    assert grandchild.root_run_id == "run-1"


async def test_children_created_at_once_do_not_exceed_the_limit(
    store: Store,
) -> None:
    await store.append(TENANT, [batch("run-1")])
    refused: list[str] = []

    async def create(run_id: str) -> None:
        try:
            await store.append(TENANT, [child(run_id)])
        except DescendantLimit:
            refused.append(run_id)

    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(create, f"child-{n}")

    root = await store.run(TENANT, "run-1")
    assert len(refused) == 8
    assert root is not None
    assert root.descendants == 2


async def test_the_root_of_another_tenant_is_not_counted(store: Store) -> None:
    await store.append(TENANT, [batch("run-1")])

    await store.append(OTHER, [child("run-2")])

    root = await store.run(TENANT, "run-1")
    assert root is not None
    assert root.descendants == 0


async def test_a_recount_gives_the_same_number(store: Store) -> None:
    for n in range(5):
        await store.append(TENANT, [batch(f"run-{n}")])
    await store.append(TENANT, [ended("run-0")])

    await store.correct_counters()
    assert await store.active_runs(TENANT) == 4

    await store.append(TENANT, [ended("run-1")])
    await store.correct_counters()
    assert await store.active_runs(TENANT) == 3
