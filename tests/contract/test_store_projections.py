"""Which runs the fleet has not been told of, and whose it is to forget an observed one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.builders import OTHER, T0, TENANT, batch, ended
from tests.contract.feedback import annotation
from wopr.store.port import Batch, Store
from wopr.store.port.projections import Unprojected

pytestmark = pytest.mark.anyio


def telling(made: Batch) -> Batch:
    return replace(made, projects=True)


async def waiting(store: Store) -> list[tuple[str, str]]:
    return [(each.tenant, each.run_id) for each in await store.unprojected(0, 100)]


async def test_a_run_with_news_waits_until_it_was_projected(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a")), batch("b")])
    await store.append(OTHER, [telling(batch("c"))])

    found = await store.unprojected(0, 100)
    await store.projected(found[:1])

    assert [(each.tenant, each.run_id) for each in found] == [(TENANT, "a"), (OTHER, "c")]
    assert await waiting(store) == [(OTHER, "c")]


async def test_news_that_come_while_a_run_is_projected_are_not_lost(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    found = await store.unprojected(0, 100)
    await store.append(TENANT, [telling(batch("a", 1))])

    await store.projected(found)

    assert await waiting(store) == [(TENANT, "a")]


async def test_a_run_that_has_news_again_goes_behind_the_others(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a")), telling(batch("b"))])

    await store.append(TENANT, [telling(batch("a", 1))])

    assert await waiting(store) == [(TENANT, "b"), (TENANT, "a")]


async def test_a_place_is_not_given_twice(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    before = await store.unprojected(0, 100)
    await store.projected(before)
    await store.append(TENANT, [telling(batch("a", 1))])

    await store.projected(before)

    assert await waiting(store) == [(TENANT, "a")]


async def test_pages_go_on_behind_a_place(store: Store) -> None:
    await store.append(TENANT, [telling(batch(name)) for name in "abc"])
    first = await store.unprojected(0, 2)

    rest = await store.unprojected(first[-1].place, 2)

    assert [each.run_id for each in (*first, *rest)] == ["a", "b", "c"]


async def test_an_annotation_is_news_of_its_run(store: Store) -> None:
    await store.append(TENANT, [batch("a")])

    await store.put_annotation(TENANT, annotation(run_id="a"))

    assert await waiting(store) == [(TENANT, "a")]


async def test_an_entry_of_another_tenant_is_not_taken_out(store: Store) -> None:
    await store.append(TENANT, [telling(batch("a"))])
    [entry] = await store.unprojected(0, 100)

    await store.projected([Unprojected(place=entry.place, tenant=OTHER, run_id="a")])

    assert await waiting(store) == [(TENANT, "a")]


async def test_annotations_of_a_batch_are_kept_with_its_events(store: Store) -> None:
    await store.append(TENANT, [replace(batch("a"), annotations=(annotation(run_id="a"),))])

    [kept] = await store.annotations(TENANT, "a", None, 10)

    assert kept == annotation(run_id="a")
    assert await waiting(store) == []


async def test_retention_of_runs_leaves_observed_ones_to_the_fleet(store: Store) -> None:
    for name in ("own", "kahn-seen"):
        await store.append(TENANT, [batch(name), ended(name)])

    removed = await store.expire(T0 + 1000, 10)

    assert removed == 1
    assert await store.run(TENANT, "own") is None
    assert await store.run(TENANT, "kahn-seen") is not None
