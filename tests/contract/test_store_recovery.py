from __future__ import annotations

import pytest

from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


def freeze(store: Store, change: int = 1, tenant: str = TENANT) -> None:
    store.count_freeze(tenant, "run-1", change, T0)


async def test_a_run_that_freezes_the_process_too_often_is_quarantined_until_released(
    store: Store,
) -> None:
    await store.append(TENANT, [batch("run-1", wake_at=T0)])
    for _ in range(store.max_crashes):
        freeze(store)

    row = await store.run(TENANT, "run-1")
    assert row is not None
    assert (row.crashes, row.quarantined_at, row.wake_at) == (store.max_crashes, T0, None)
    assert not await store.release_from_quarantine(OTHER, "run-1", T0 + 1)

    assert await store.release_from_quarantine(TENANT, "run-1", T0 + 1)

    row = await store.run(TENANT, "run-1")
    assert row is not None
    assert (row.crashes, row.quarantined_at, row.wake_at) == (0, None, T0 + 1)
    assert not await store.release_from_quarantine(TENANT, "run-1", T0 + 2)


async def test_a_freeze_that_ended_is_not_a_crash(store: Store) -> None:
    await store.append(TENANT, [batch("run-1")])
    freeze(store)
    freeze(store, -1)
    freeze(store, 1, tenant=OTHER)

    row = await store.run(TENANT, "run-1")
    assert row is not None
    assert (row.crashes, row.quarantined_at) == (0, None)


async def test_a_recovered_run_has_no_crashes(store: Store) -> None:
    await store.append(TENANT, [batch("run-1")])
    freeze(store)

    await store.clear_crashes(OTHER, "run-1")
    before = await store.run(TENANT, "run-1")
    await store.clear_crashes(TENANT, "run-1")
    after = await store.run(TENANT, "run-1")

    assert before is not None
    assert after is not None
    assert (before.crashes, after.crashes) == (1, 0)


async def crashes(store: Store, *run_ids: str) -> list[int]:
    rows = [await store.run(TENANT, run_id) for run_id in run_ids]
    return [row.crashes for row in rows if row is not None]


@pytest.fixture
async def recording(store: Store) -> Store:
    """Return a store that records recoveries, with three runs of which the third has ended."""
    if store.peers is not None:
        pytest.skip(
            "where processes share a store, the name of a process is in the rows of its runs"
        )
    for run_id in ("run-1", "run-2", "run-3"):
        await store.append(TENANT, [batch(run_id)])
    await store.append(TENANT, [ended("run-3")])
    return store


async def test_a_run_recorded_alone_at_its_second_crash_is_quarantined(
    recording: Store,
) -> None:
    await recording.record_recovery([(TENANT, "run-1"), (TENANT, "run-3")])

    assert await recording.begin_recovery(T0) == [(TENANT, "run-1")]

    await recording.record_recovery([(TENANT, "run-1")])
    assert await recording.begin_recovery(T0 + 1) == []
    row = await recording.run(TENANT, "run-1")
    assert row is not None
    assert (row.crashes, row.quarantined_at) == (2, T0 + 1)


async def test_runs_recorded_together_are_never_quarantined(recording: Store) -> None:
    both = [(TENANT, "run-1"), (TENANT, "run-2")]
    for _ in range(4):
        await recording.record_recovery(both)

        assert await recording.begin_recovery(T0) == both

    assert await crashes(recording, "run-1", "run-2") == [1, 1]


async def test_a_run_not_recorded_at_the_next_crash_is_no_longer_suspected(
    recording: Store,
) -> None:
    await recording.record_recovery([(TENANT, "run-1"), (TENANT, "run-2")])
    await recording.begin_recovery(T0)

    await recording.record_recovery([(TENANT, "run-2")])
    await recording.begin_recovery(T0)

    assert await crashes(recording, "run-1", "run-2") == [0, 2]


async def test_a_run_that_froze_a_process_is_suspected_until_a_crash_without_it(
    recording: Store,
) -> None:
    freeze(recording)

    assert await recording.begin_recovery(T0) == [(TENANT, "run-1")]
    assert await recording.begin_recovery(T0) == []
    assert await crashes(recording, "run-1") == [0]
