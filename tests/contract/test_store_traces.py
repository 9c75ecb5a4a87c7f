"""Traces on their way into the fleet: each part once, sealed before the conversion."""

from __future__ import annotations

import pytest

from tests.support.rows import OTHER, TENANT
from wopr.store.port import Store
from wopr.store.port.traces import DueTrace, StoredTrace, TracePart

pytestmark = pytest.mark.anyio

MOST = 100


def part(body: str, trace_id: str = "t-1", spans: int = 1) -> TracePart:
    return TracePart(trace_id=trace_id, digest=body.encode(), spans=spans, body=body.encode())


async def put(store: Store, *parts: TracePart, now: int = 10, tenant: str = TENANT) -> int:
    return await store.put_spans(tenant, parts, now=now, due_at=now + 5, most_spans=MOST)


async def held(store: Store, trace_id: str = "t-1") -> StoredTrace:
    found = await store.trace(TENANT, trace_id)
    assert found is not None
    return found


async def test_spans_are_stored_once_and_make_their_trace_due(store: Store) -> None:
    await put(store, part("a"), part("b", "t-2"))
    await put(store, part("a"), now=30)
    await put(store, part("c"), now=20)

    found = await held(store)
    assert found.parts == {0: [b"a", b"c"]}
    assert (found.last_at, found.closed, found.projected) == (20, 0, 0)
    assert await store.due_traces(10) == [
        DueTrace(tenant=TENANT, trace_id="t-2", due_at=15),
        DueTrace(tenant=TENANT, trace_id="t-1", due_at=25),
    ]


async def test_a_trace_belongs_to_its_tenant_only(store: Store) -> None:
    await put(store, part("a"))
    await put(store, part("b"), tenant=OTHER)

    theirs = await store.trace(OTHER, "t-1")
    assert theirs is not None
    assert theirs.parts == {0: [b"b"]}
    await store.close_episode(OTHER, theirs)
    await store.delete_trace(OTHER, theirs)
    assert await store.trace(OTHER, "t-1") is None
    assert (await held(store)).parts == {0: [b"a"]}


async def test_spans_beyond_the_limit_of_a_trace_are_dropped_and_counted(store: Store) -> None:
    refused = await put(store, part("a", spans=90), part("b", spans=11), part("c", spans=10))

    assert refused == 11
    assert (await held(store)).parts == {0: [b"a", b"c"]}
    assert await put(store, part("a", spans=90)) == 0


async def test_spans_that_arrive_after_sealing_are_in_the_next_episode(store: Store) -> None:
    await put(store, part("a"))

    assert await store.close_episode(TENANT, await held(store))
    await put(store, part("b"), now=11)
    await store.close_episode(TENANT, await held(store))

    assert (await held(store)).parts == {1: [b"a"], 2: [b"b"]}
    assert (await held(store)).closed == 2


async def test_a_changed_trace_is_neither_sealed_nor_dropped_nor_postponed(store: Store) -> None:
    await put(store, part("a"))
    before = await held(store)
    # In the same millisecond.
    await put(store, part("b"))

    assert not await store.close_episode(TENANT, before)
    await store.delete_trace(TENANT, before)
    await store.record_projected_episode(TENANT, before, episode=0, due_at=999)

    assert (await held(store)).parts == {0: [b"a", b"b"]}
    assert [each.due_at for each in await store.due_traces(10)] == [15]


async def test_one_of_two_sealings_succeeds(store: Store) -> None:
    await put(store, part("a"))
    before = await held(store)

    done = [await store.close_episode(TENANT, before) for _ in range(2)]

    assert done == [True, False]
    assert (await held(store)).closed == 1


async def test_exported_spans_are_known_until_the_trace_is_dropped(store: Store) -> None:
    await put(store, part("a"))
    await store.close_episode(TENANT, await held(store))

    await store.record_projected_episode(TENANT, await held(store), episode=1, due_at=500)

    found = await held(store)
    assert (found.projected, found.parts) == (1, {1: [b"a"]})
    assert [each.due_at for each in await store.due_traces(10)] == [500]
    await store.delete_trace(TENANT, found)
    assert await store.due_traces(10) == []
    assert await store.trace(TENANT, "t-1") is None
