"""The queue of observed runs, and the pushed lines from which they are built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.feedback_rows import annotation
from tests.support.fleet_rows import batch_of, body, end, moved, new_lines, push, start
from tests.support.rows import OTHER, TENANT, batch
from wopr.protocol.errors import SequenceTaken
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

PLENTY = 1_000_000


def whole(run_id: str = "r-1") -> list[bytes]:
    return [start(run_id), moved(run_id, 0, "response"), end(run_id)]


# The queue


async def test_a_run_and_its_lines_are_marked_as_changed_together(store: Store) -> None:
    found = await new_lines(store, TENANT, whole())

    await store.fleet_ingest(TENANT, replace(batch_of(found), observed_run_ids=("kahn-1",)))

    [entry] = await store.queued_projections(0, 10, observed=True)
    assert (entry.tenant, entry.run_id) == (TENANT, "kahn-1")
    assert await store.queued_projections(0, 10) == []


async def test_a_run_is_not_marked_as_changed_when_its_lines_are_refused(store: Store) -> None:
    found = await new_lines(store, TENANT, whole())
    await push(store, TENANT, whole())

    with pytest.raises(SequenceTaken):
        await store.fleet_ingest(TENANT, replace(batch_of(found), observed_run_ids=("kahn-1",)))

    assert await store.queued_projections(0, 10, observed=True) == []


async def test_observed_runs_and_the_host_s_own_are_queued_separately(store: Store) -> None:
    await store.append(TENANT, [replace(batch("own"), projects=True), batch("kahn-1")])
    await store.put_annotation(TENANT, annotation(run_id="kahn-1"))

    own, observed = (
        await store.queued_projections(0, 10),
        await store.queued_projections(0, 10, observed=True),
    )

    assert [each.run_id for each in own] == ["own"]
    assert [each.run_id for each in observed] == ["kahn-1"]


async def test_the_queue_of_one_tenant_is_read_page_by_page(store: Store) -> None:
    for tenant, names in ((TENANT, ("kahn-1", "own")), (OTHER, ("kahn-2",)), (TENANT, ("kahn-3",))):
        await store.append(tenant, [replace(batch(name), projects=True) for name in names])

    [first] = await store.queued_projections_of_tenant(TENANT, 0, 1)
    rest = await store.queued_projections_of_tenant(TENANT, first.place, 10)

    assert [each.run_id for each in (first, *rest)] == ["kahn-1", "kahn-3"]


async def test_a_run_is_queued_until_it_was_processed(store: Store) -> None:
    found = await new_lines(store, TENANT, whole())
    await store.fleet_ingest(TENANT, replace(batch_of(found), observed_run_ids=("kahn-1",)))
    before = await store.is_projection_queued(TENANT, "kahn-1")

    await store.remove_projections(await store.queued_projections(0, 10, observed=True))

    assert before
    assert not await store.is_projection_queued(TENANT, "kahn-1")


async def test_a_run_of_another_tenant_is_not_queued(store: Store) -> None:
    found = await new_lines(store, TENANT, whole())
    await store.fleet_ingest(TENANT, replace(batch_of(found), observed_run_ids=("kahn-1",)))

    assert not await store.is_projection_queued(OTHER, "kahn-1")


# The lines


@pytest.mark.parametrize(("first", "missing"), [(0, 0), (2, 1)])
async def test_pushes_are_read_from_a_position(store: Store, first: int, missing: int) -> None:
    pushes = [whole()[:2], whole()[2:]]
    for each in pushes:
        await push(store, TENANT, each)

    found = await store.fleet_new_chunks(TENANT, {"r-1": first}, PLENTY)

    assert found == {"r-1": [body(each) for each in pushes[missing:]]}


async def test_pushes_are_read_run_by_run_and_only_of_runs_that_have_some(store: Store) -> None:
    await push(store, TENANT, [*whole("r-1"), *whole("r-2"), *whole("r-3")])

    found = await store.fleet_new_chunks(TENANT, {"r-3": 0, "r-2": 3, "r-1": 0, "r-9": 0}, PLENTY)

    assert list(found.items()) == [("r-3", [body(whole("r-3"))]), ("r-1", [body(whole("r-1"))])]


async def test_reading_stops_at_the_requested_size(store: Store) -> None:
    for each in whole():
        await push(store, TENANT, [each])
    await push(store, TENANT, whole("r-2"))
    enough = len(body(whole()[:2]))

    found = await store.fleet_new_chunks(TENANT, {"r-1": 0, "r-2": 0}, enough)
    rest = await store.fleet_new_chunks(TENANT, {"r-1": 2, "r-2": 0}, PLENTY)

    assert found == {"r-1": [body([each]) for each in whole()[:2]]}
    assert rest == {"r-1": [body(whole()[2:])], "r-2": [body(whole("r-2"))]}


async def test_pushes_of_another_tenant_are_not_read(store: Store) -> None:
    await push(store, TENANT, whole())

    assert await store.fleet_new_chunks(OTHER, {"r-1": 0}, PLENTY) == {}


async def test_runs_of_this_host_with_the_same_id_are_found_per_tenant(store: Store) -> None:
    await store.append(TENANT, [batch("a"), batch("b")])
    await store.append(OTHER, [batch("c")])

    assert await store.fleet_host_run_ids(TENANT, ["a", "c", "d"]) == {"a"}
    assert await store.fleet_host_run_ids(TENANT, []) == set()
