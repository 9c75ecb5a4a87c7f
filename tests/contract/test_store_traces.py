"""Traces on their way into the fleet: each part once, sealed before it is told."""

from __future__ import annotations

import pytest

from tests.contract.builders import OTHER, TENANT
from wopr.store.port import Store
from wopr.store.port.traces import DueTrace, HeldTrace, TracePart

pytestmark = pytest.mark.anyio

MOST = 100


def part(body: str, trace_id: str = "t-1", spans: int = 1) -> TracePart:
    return TracePart(trace_id=trace_id, digest=body.encode(), spans=spans, body=body.encode())


async def put(store: Store, *parts: TracePart, now: int = 10, tenant: str = TENANT) -> int:
    return await store.put_spans(tenant, parts, now=now, due_at=now + 5, most_spans=MOST)


async def held(store: Store, trace_id: str = "t-1") -> HeldTrace:
    found = await store.trace(TENANT, trace_id)
    assert found is not None
    return found


async def test_parts_are_kept_each_once_and_make_their_trace_due(store: Store) -> None:
    await put(store, part("a"), part("b", "t-2"))
    await put(store, part("a"), now=30)
    await put(store, part("c"), now=20)

    found = await held(store)
    assert found.parts == {0: [b"a", b"c"]}
    assert (found.last_at, found.sealed, found.told) == (20, 0, 0)
    assert await store.due_traces(10) == [
        DueTrace(tenant=TENANT, trace_id="t-2", due_at=15),
        DueTrace(tenant=TENANT, trace_id="t-1", due_at=25),
    ]


async def test_a_trace_is_its_tenant_s_alone(store: Store) -> None:
    await put(store, part("a"))
    await put(store, part("b"), tenant=OTHER)

    theirs = await store.trace(OTHER, "t-1")
    assert theirs is not None
    assert theirs.parts == {0: [b"b"]}
    await store.seal_trace(OTHER, theirs)
    await store.drop_trace(OTHER, theirs)
    assert await store.trace(OTHER, "t-1") is None
    assert (await held(store)).parts == {0: [b"a"]}


async def test_what_is_too_much_for_a_trace_is_left_out_and_counted(store: Store) -> None:
    refused = await put(store, part("a", spans=90), part("b", spans=11), part("c", spans=10))

    assert refused == 11
    assert (await held(store)).parts == {0: [b"a", b"c"]}
    assert await put(store, part("a", spans=90)) == 0


async def test_what_comes_after_the_seal_is_in_the_next_episode(store: Store) -> None:
    await put(store, part("a"))

    assert await store.seal_trace(TENANT, await held(store))
    await put(store, part("b"), now=11)
    await store.seal_trace(TENANT, await held(store))

    assert (await held(store)).parts == {1: [b"a"], 2: [b"b"]}
    assert (await held(store)).sealed == 2


async def test_a_trace_with_news_is_neither_sealed_nor_dropped_nor_put_off(store: Store) -> None:
    await put(store, part("a"))
    before = await held(store)
    # In the same millisecond.
    await put(store, part("b"))

    assert not await store.seal_trace(TENANT, before)
    await store.drop_trace(TENANT, before)
    await store.settle_trace(TENANT, before, told=0, due_at=999)

    assert (await held(store)).parts == {0: [b"a", b"b"]}
    assert [each.due_at for each in await store.due_traces(10)] == [15]


async def test_of_two_who_seal_the_same_one_does(store: Store) -> None:
    await put(store, part("a"))
    before = await held(store)

    done = [await store.seal_trace(TENANT, before) for _ in range(2)]

    assert done == [True, False]
    assert (await held(store)).sealed == 1


async def test_what_was_told_is_known_until_the_trace_is_dropped(store: Store) -> None:
    await put(store, part("a"))
    await store.seal_trace(TENANT, await held(store))

    await store.settle_trace(TENANT, await held(store), told=1, due_at=500)

    found = await held(store)
    assert (found.told, found.parts) == (1, {1: [b"a"]})
    assert [each.due_at for each in await store.due_traces(10)] == [500]
    await store.drop_trace(TENANT, found)
    assert await store.due_traces(10) == []
    assert await store.trace(TENANT, "t-1") is None
