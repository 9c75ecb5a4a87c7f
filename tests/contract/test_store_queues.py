from __future__ import annotations

import anyio
import pytest

from tests.support.feedback_rows import queue, review, totals, window
from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.protocol.errors import Conflict, NotFound
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

MINUTE = 60_000


async def take(
    store: Store, reviewer: str, *, now: int = T0, queue_id: str = "q-1", tenant: str = TENANT
) -> str | None:
    return await store.lock_queue_item(tenant, queue_id, reviewer, now=now, until=now + 30 * MINUTE)


async def opened(store: Store, *run_ids: str, overlap: int = 1) -> None:
    await store.append(TENANT, [batch(run_id) for run_id in run_ids])
    await store.put_queue(TENANT, queue(overlap=overlap), run_ids)


async def test_queues_are_listed_newest_first_and_by_tenant(store: Store) -> None:
    for n in range(4):
        await store.put_queue(TENANT, queue(f"q-{n}", T0 + n // 2), [])

    first = await store.queues(TENANT, None, 3)
    rest = await store.queues(TENANT, (first[-1].created_at, first[-1].queue_id), 3)

    assert [row.queue_id for row in (*first, *rest)] == ["q-3", "q-2", "q-1", "q-0"]
    assert await store.queues(OTHER, None, 3) == []
    assert await store.queue(TENANT, "q-0") == queue("q-0", T0)
    assert await store.queue(OTHER, "q-0") is None


async def test_runs_are_assigned_in_order_each_to_one_reviewer(store: Store) -> None:
    await opened(store, "run-1", "run-2")

    assert [await take(store, name) for name in ("ann", "bob", "eve")] == ["run-1", "run-2", None]


async def test_a_reviewer_who_holds_a_run_gets_it_again(store: Store) -> None:
    await opened(store, "run-1", "run-2")

    assert [await take(store, "ann"), await take(store, "ann", now=T0 + MINUTE)] == ["run-1"] * 2


async def test_an_expired_lock_admits_other_reviewers(store: Store) -> None:
    await opened(store, "run-1")
    await take(store, "ann")

    assert await take(store, "bob", now=T0 + 29 * MINUTE) is None
    assert await take(store, "bob", now=T0 + 31 * MINUTE) == "run-1"


async def test_two_concurrent_reviewers_get_two_runs(store: Store) -> None:
    await opened(store, *(f"run-{n}" for n in range(20)))
    taken: list[str | None] = []

    async def one(name: str) -> None:
        taken.append(await take(store, name))

    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(one, f"reviewer-{n}")

    assert sorted(map(str, taken)) == sorted(f"run-{n}" for n in range(20))


async def test_a_queue_accepts_no_runs_of_another_tenant_and_none_twice(store: Store) -> None:
    await store.append(OTHER, [batch("foreign")])
    await opened(store, "run-1")

    added = await store.add_queue_items(TENANT, "q-1", ["foreign", "run-1", "unknown"], most=9)

    assert added == 0
    assert (await store.review_counts(TENANT, "q-1", T0)).items == 1


async def test_no_more_runs_are_added_than_the_queue_can_hold(store: Store) -> None:
    await opened(store, "run-1")
    await store.append(TENANT, [batch(f"more-{n}") for n in range(3)])

    added = await store.add_queue_items(
        TENANT, "q-1", ["run-1", "more-0", "more-1", "more-2"], most=2
    )

    assert added == 2
    assert (await store.review_counts(TENANT, "q-1", T0)).items == 3


async def test_a_review_stores_its_annotations_and_completes_the_run(store: Store) -> None:
    await opened(store, "run-1")
    await take(store, "ann")

    assert await store.finish_review(TENANT, review("ann")) == (1, True)

    assert len(await store.annotations(TENANT, "run-1", None, 10)) == 1
    assert totals(await store.feedback_counts(TENANT, window(), "nothing"))[4] == 1
    assert await take(store, "bob") is None


async def test_an_unclaimed_run_cannot_be_completed(store: Store) -> None:
    await opened(store, "run-1")

    with pytest.raises(Conflict, match="items:next"):
        await store.finish_review(TENANT, review("ann"))

    assert await store.annotations(TENANT, "run-1", None, 10) == []


async def test_a_review_is_accepted_once(store: Store) -> None:
    await opened(store, "run-1", overlap=2)
    await take(store, "ann")
    await store.finish_review(TENANT, review("ann"))

    with pytest.raises(Conflict, match="already"):
        await store.finish_review(TENANT, review("ann"))


async def test_a_late_review_is_accepted_while_its_place_is_free(store: Store) -> None:
    await opened(store, "run-1")
    await take(store, "ann")

    late = review("ann", at=T0 + 31 * MINUTE)

    assert await store.finish_review(TENANT, late) == (1, True)


async def test_a_late_review_is_refused_once_another_reviewer_holds_the_run(store: Store) -> None:
    await opened(store, "run-1")
    await take(store, "ann")
    await take(store, "bob", now=T0 + 31 * MINUTE)

    with pytest.raises(Conflict, match="expired") as refused:
        await store.finish_review(TENANT, review("ann", at=T0 + 32 * MINUTE))

    assert refused.value.code == "review_conflict"


@pytest.mark.parametrize("tenant", [TENANT, OTHER])
async def test_an_unknown_queue_or_run_accepts_no_reviews(store: Store, tenant: str) -> None:
    await opened(store, "run-1")
    elsewhere = "q-2" if tenant == TENANT else "q-1"
    await take(store, "ann", queue_id=elsewhere, tenant=tenant)

    with pytest.raises(NotFound):
        await store.finish_review(tenant, review("ann", queue_id=elsewhere))


async def test_with_an_overlap_every_run_gets_that_many_reviewers(store: Store) -> None:
    await opened(store, "run-1", overlap=2)

    assert [await take(store, name) for name in ("ann", "bob", "eve")] == ["run-1", "run-1", None]
    assert await store.finish_review(TENANT, review("ann")) == (1, False)
    assert await take(store, "eve") is None
    assert await store.finish_review(TENANT, review("bob")) == (2, True)


async def test_progress_and_agreement_are_counted(store: Store) -> None:
    await opened(store, "run-1", "run-2", "run-3", overlap=2)
    for reviewer, verdicts in (("ann", [b"good", b"good"]), ("bob", [b"good", b"bad"])):
        for run_id, verdict in zip(("run-1", "run-2"), verdicts, strict=True):
            await take(store, reviewer)
            await store.finish_review(TENANT, review(reviewer, run_id, verdict))
    await take(store, "ann")

    counts = await store.review_counts(TENANT, "q-1", T0)

    assert (counts.items, counts.finished, counts.locked, counts.reviews) == (3, 2, 1, 4)
    assert (counts.compared, counts.agreed) == (2, 1)
    assert (await store.review_counts(TENANT, "q-1", T0 + 31 * MINUTE)).locked == 0
    assert (await store.review_counts(OTHER, "q-1", T0)).items == 0


async def test_an_expired_run_is_removed_from_its_queues(store: Store) -> None:
    await store.append(TENANT, [ended("old", first=0, at=T0), batch("open")])
    await store.put_queue(TENANT, queue(), ["old", "open"])
    await take(store, "ann")

    await store.delete_expired_runs(T0 + 1, 10)

    counts = await store.review_counts(TENANT, "q-1", T0)
    assert (counts.items, counts.locked) == (1, 0)
    assert await take(store, "ann") == "open"
