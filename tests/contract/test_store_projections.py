"""The queue of runs to project into the fleet, and the retention of observed runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.feedback_rows import annotation
from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.store.port import Batch, Store
from wopr.store.port.fleet import QueuedProjection

pytestmark = pytest.mark.anyio


def telling(made: Batch) -> Batch:
    return replace(made, projects=True)


async def waiting(store: Store) -> list[tuple[str, str]]:
    return [(each.tenant, each.run_id) for each in await store.queued_projections(0, 100)]


async def test_a_changed_run_is_queued_until_it_was_projected(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a")), batch("b")])
    await store.append(OTHER, [telling(batch("c"))])

    found = await store.queued_projections(0, 100)
    await store.remove_projections(found[:1])

    assert [(each.tenant, each.run_id) for each in found] == [(TENANT, "a"), (OTHER, "c")]
    assert await waiting(store) == [(OTHER, "c")]


async def test_changes_during_a_projection_are_not_lost(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    found = await store.queued_projections(0, 100)
    await store.append(TENANT, [telling(batch("a", 1))])

    await store.remove_projections(found)

    assert await waiting(store) == [(TENANT, "a")]


async def test_a_run_that_changes_again_moves_to_the_end_of_the_queue(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a")), telling(batch("b"))])

    await store.append(TENANT, [telling(batch("a", 1))])

    assert await waiting(store) == [(TENANT, "b"), (TENANT, "a")]


async def test_a_place_in_the_queue_is_used_once(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    before = await store.queued_projections(0, 100)
    await store.remove_projections(before)
    await store.append(TENANT, [telling(batch("a", 1))])

    await store.remove_projections(before)

    assert await waiting(store) == [(TENANT, "a")]


async def test_pages_continue_after_a_position(store: Store) -> None:
    await store.append(TENANT, [telling(batch(name)) for name in "abc"])
    first = await store.queued_projections(0, 2)

    rest = await store.queued_projections(first[-1].place, 2)

    assert [each.run_id for each in (*first, *rest)] == ["a", "b", "c"]


async def test_an_annotation_marks_its_run_as_changed(store: Store) -> None:
    await store.append(TENANT, [batch("a")])

    await store.put_annotation(TENANT, annotation(run_id="a"))

    assert await waiting(store) == [(TENANT, "a")]


async def test_an_entry_of_another_tenant_is_not_removed(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    [entry] = await store.queued_projections(0, 100)

    await store.remove_projections([QueuedProjection(place=entry.place, tenant=OTHER, run_id="a")])

    assert await waiting(store) == [(TENANT, "a")]


async def test_annotations_of_a_batch_are_stored_with_its_events(store: Store) -> None:
    await store.append(TENANT, [replace(batch("a"), annotations=(annotation(run_id="a"),))])

    [kept] = await store.annotations(TENANT, "a", None, 10)

    assert kept == annotation(run_id="a")
    assert await waiting(store) == []


async def test_retention_of_runs_does_not_delete_observed_ones(store: Store) -> None:
    for name in ("own", "kahn-seen"):
        await store.append(TENANT, [batch(name), ended(name)])

    removed = await store.delete_expired_runs(T0 + 1000, 10)

    assert removed == 1
    assert await store.run(TENANT, "own") is None
    assert await store.run(TENANT, "kahn-seen") is not None
