"""What is owed to the runs that show pushed lines, and the lines that they are built from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.builders import OTHER, TENANT, batch
from tests.contract.feedback import annotation
from tests.contract.fleet import batch_of, body, end, growths, moved, push, start
from wopr.protocol.errors import SequenceTaken
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

PLENTY = 1_000_000


def whole(run_id: str = "r-1") -> list[bytes]:
    return [start(run_id), moved(run_id, 0, "response"), end(run_id)]


# The queue


async def test_the_run_that_shows_lines_has_news_with_them(store: Store) -> None:
    found = await growths(store, TENANT, whole())

    await store.fleet_ingest(TENANT, replace(batch_of(found), shown_by=("kahn-1",)))

    [entry] = await store.unprojected(0, 10, observed=True)
    assert (entry.tenant, entry.run_id) == (TENANT, "kahn-1")
    assert await store.unprojected(0, 10) == []


async def test_a_run_has_no_news_when_its_lines_are_refused(store: Store) -> None:
    found = await growths(store, TENANT, whole())
    await push(store, TENANT, whole())

    with pytest.raises(SequenceTaken):
        await store.fleet_ingest(TENANT, replace(batch_of(found), shown_by=("kahn-1",)))

    assert await store.unprojected(0, 10, observed=True) == []


async def test_observed_runs_and_the_host_s_own_wait_apart(store: Store) -> None:
    await store.append(TENANT, [replace(batch("own"), projects=True), batch("kahn-1")])
    await store.put_annotation(TENANT, annotation(run_id="kahn-1"))

    own, observed = await store.unprojected(0, 10), await store.unprojected(0, 10, observed=True)

    assert [each.run_id for each in own] == ["own"]
    assert [each.run_id for each in observed] == ["kahn-1"]


async def test_what_waits_of_one_tenant_comes_page_by_page(store: Store) -> None:
    for tenant, names in ((TENANT, ("kahn-1", "own")), (OTHER, ("kahn-2",)), (TENANT, ("kahn-3",))):
        await store.append(tenant, [replace(batch(name), projects=True) for name in names])

    [first] = await store.unprojected_of(TENANT, 0, 1)
    rest = await store.unprojected_of(TENANT, first.place, 10)

    assert [each.run_id for each in (first, *rest)] == ["kahn-1", "kahn-3"]


async def test_a_run_is_known_to_wait_until_it_was_seen_to(store: Store) -> None:
    found = await growths(store, TENANT, whole())
    await store.fleet_ingest(TENANT, replace(batch_of(found), shown_by=("kahn-1",)))
    before = await store.is_unprojected(TENANT, "kahn-1")

    await store.projected(await store.unprojected(0, 10, observed=True))

    assert before
    assert not await store.is_unprojected(TENANT, "kahn-1")


async def test_a_run_of_another_tenant_does_not_wait(store: Store) -> None:
    found = await growths(store, TENANT, whole())
    await store.fleet_ingest(TENANT, replace(batch_of(found), shown_by=("kahn-1",)))

    assert not await store.is_unprojected(OTHER, "kahn-1")


# The lines


@pytest.mark.parametrize(("first", "missing"), [(0, 0), (2, 1)])
async def test_news_are_the_pushes_from_a_place_on(store: Store, first: int, missing: int) -> None:
    pushes = [whole()[:2], whole()[2:]]
    for each in pushes:
        await push(store, TENANT, each)

    found = await store.fleet_news(TENANT, {"r-1": first}, PLENTY)

    assert found == {"r-1": [body(each) for each in pushes[missing:]]}


async def test_news_come_run_by_run_and_only_of_runs_that_have_some(store: Store) -> None:
    await push(store, TENANT, [*whole("r-1"), *whole("r-2"), *whole("r-3")])

    found = await store.fleet_news(TENANT, {"r-3": 0, "r-2": 3, "r-1": 0, "r-9": 0}, PLENTY)

    assert list(found.items()) == [("r-3", [body(whole("r-3"))]), ("r-1", [body(whole("r-1"))])]


async def test_nothing_more_is_read_once_there_is_enough(store: Store) -> None:
    for each in whole():
        await push(store, TENANT, [each])
    await push(store, TENANT, whole("r-2"))
    enough = len(body(whole()[:2]))

    found = await store.fleet_news(TENANT, {"r-1": 0, "r-2": 0}, enough)
    rest = await store.fleet_news(TENANT, {"r-1": 2, "r-2": 0}, PLENTY)

    assert found == {"r-1": [body([each]) for each in whole()[:2]]}
    assert rest == {"r-1": [body(whole()[2:])], "r-2": [body(whole("r-2"))]}


async def test_news_of_another_tenant_are_not_read(store: Store) -> None:
    await push(store, TENANT, whole())

    assert await store.fleet_news(OTHER, {"r-1": 0}, PLENTY) == {}


async def test_namesakes_are_runs_of_the_tenant_on_this_host(store: Store) -> None:
    await store.append(TENANT, [batch("a"), batch("b")])
    await store.append(OTHER, [batch("c")])

    assert await store.fleet_namesakes(TENANT, ["a", "c", "d"]) == {"a"}
    assert await store.fleet_namesakes(TENANT, []) == set()
