from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.support.rows import OTHER, T0, TENANT, batch, ended, suspending, suspension
from wopr.protocol.errors import SequenceTaken
from wopr.store.port import Store, Suspension, SuspensionFilter
from wopr.store.port.suspensions import PENDING_BYTES

pytestmark = pytest.mark.anyio

EVERY = SuspensionFilter()
KINDS = ("approval", "clarification", "low-confidence")


async def pending(
    store: Store, where: SuspensionFilter = EVERY, tenant: str = TENANT, size: int = 1000
) -> list[Suspension]:
    """Return all pages in order."""
    found: list[Suspension] = []
    after: tuple[int, str] | None = None
    while True:
        page = await store.pending_interrupts(tenant, where, after, size)
        assert len(page.suspensions) <= size
        found += page.suspensions
        if page.next_after is None:
            return found
        after = page.next_after


async def test_a_suspension_is_pending_from_its_batch_on(store: Store) -> None:
    opened = suspension(expires_at=T0 + 5, body=b'{"kind":"approval"}')

    await store.append(TENANT, [suspending(opened)])

    assert await pending(store) == [opened]
    assert await store.count_pending_interrupts(TENANT) == 1


async def test_a_failed_batch_opens_and_ends_no_suspension(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension())])

    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [suspending(suspension("late"), resumes=["int-1"])])

    assert await pending(store) == [suspension()]


async def test_a_resumed_suspension_is_no_longer_pending(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension("a"), suspension("b"))])

    await store.append(TENANT, [replace(batch(first=1), resumes=("a", "unknown"))])

    assert await pending(store) == [suspension("b")]
    assert await store.count_pending_interrupts(TENANT) == 1


async def test_resuming_affects_only_the_run_of_the_batch(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension()), suspending(suspension(run_id="run-2"))])

    await store.append(TENANT, [replace(batch(first=1), resumes=("int-1",))])

    assert await pending(store) == [suspension(run_id="run-2")]


async def test_a_suspension_opened_and_ended_in_one_batch_is_never_pending(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension("a"), suspension("b"), resumes=["a"])])

    assert await pending(store) == [suspension("b")]


async def test_a_suspension_with_a_pending_id_replaces_it(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension())])

    await store.append(TENANT, [suspending(suspension(body=b"1 of 3"), first=1)])

    assert await pending(store) == [suspension(body=b"1 of 3")]


async def test_an_ended_run_has_no_pending_suspension(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension("a"), suspension("b"))])
    await store.append(TENANT, [suspending(suspension(run_id="run-2"))])

    await store.append(TENANT, [batch(first=1), ended(first=2)])

    assert await pending(store) == [suspension(run_id="run-2")]
    assert await store.count_pending_interrupts(TENANT) == 1


async def test_a_run_that_suspends_and_ends_in_one_call_has_nothing_pending(store: Store) -> None:
    last = replace(ended(first=1), suspends=(suspension("b"),))

    await store.append(TENANT, [suspending(suspension("a")), last])

    assert await pending(store) == []


async def test_a_batch_cannot_suspend_another_run(store: Store) -> None:
    wrong = replace(batch("run-2"), suspends=(suspension(),))

    with pytest.raises(ValueError, match="its own run"):
        await store.append(TENANT, [wrong])


@pytest.fixture
async def full(store: Store) -> Store:
    """Return a store with suspensions of every kind in two workflows and six runs."""
    for n, (kind, workflow_id, run) in enumerate(product(KINDS, ("greet", "part"), range(3))):
        opened = suspension(
            f"int-{n:02}",
            f"run-{workflow_id}-{run}",
            T0 + n // 3,
            kind=kind,
            workflow_id=workflow_id,
        )
        first = [*KINDS].index(kind)
        await store.append(TENANT, [suspending(opened, first=first)])
    return store


@pytest.mark.parametrize("kinds", [(), ("approval",), ("low-confidence", "approval")])
@pytest.mark.parametrize("workflow_id", [None, "part"])
@pytest.mark.parametrize("run_id", [None, "run-part-1"])
async def test_pages_of_any_filter_contain_each_match_once_newest_first(
    full: Store, kinds: tuple[str, ...], workflow_id: str | None, run_id: str | None
) -> None:
    where = SuspensionFilter(kinds=kinds, workflow_id=workflow_id, run_id=run_id)
    matching = [
        one
        for one in await pending(full)
        if (not kinds or one.kind in kinds)
        and workflow_id in (None, one.workflow_id)
        and run_id in (None, one.run_id)
    ]

    listed = await pending(full, where, size=2)

    assert listed == matching
    keys = [(one.created_at, f"{one.run_id}/{one.interrupt_id}") for one in listed]
    assert keys == sorted(keys, reverse=True)
    assert keys


async def test_a_new_suspension_does_not_shift_the_following_pages(full: Store) -> None:
    first = await full.pending_interrupts(TENANT, EVERY, None, 4)

    await full.append(TENANT, [suspending(suspension("new", "run-new", T0 + 99))])
    second = await full.pending_interrupts(TENANT, EVERY, first.next_after, 4)

    before = [one.interrupt_id for one in await pending(full)]
    assert [one.interrupt_id for one in (*first.suspensions, *second.suspensions)] == before[1:9]


async def test_the_last_page_is_marked(full: Store) -> None:
    assert (await full.pending_interrupts(TENANT, EVERY, None, 18)).next_after is None
    assert (await full.pending_interrupts(TENANT, EVERY, None, 17)).next_after is not None


@pytest.mark.parametrize(
    "where",
    [
        EVERY,
        SuspensionFilter(kinds=("approval",)),
        SuspensionFilter(kinds=("approval", "clarification")),
        SuspensionFilter(workflow_id="greet"),
        SuspensionFilter(run_id="run-1"),
    ],
)
async def test_another_tenant_s_suspensions_are_neither_listed_nor_counted(
    store: Store, where: SuspensionFilter
) -> None:
    await store.append(TENANT, [suspending(suspension())])

    assert await pending(store, where) == [suspension()]
    assert await pending(store, where, OTHER) == []
    assert await store.count_pending_interrupts(OTHER) == 0


async def test_another_tenant_s_batch_ends_no_suspension(store: Store) -> None:
    await store.append(TENANT, [suspending(suspension())])

    with pytest.raises(SequenceTaken):
        await store.append(OTHER, [replace(batch(first=1), resumes=("int-1",))])

    assert await pending(store) == [suspension()]


async def test_suspensions_survive_a_restart(store_url: str) -> None:
    from wopr.store.open import open_store

    before = await open_store(store_url)
    await before.append(TENANT, [suspending(suspension("a"), suspension("b"))])
    await before.close()

    after = await open_store(store_url)
    await after.append(TENANT, [ended()])

    assert await pending(after) == []
    await after.close()


@pytest.mark.parametrize("where", [EVERY, SuspensionFilter(kinds=KINDS)])
async def test_a_page_ends_with_the_suspension_that_reaches_its_byte_limit(
    store: Store, where: SuspensionFilter
) -> None:
    large = [
        suspension(f"int-{number}", at=T0 + number, body=b"%d" % number * (PENDING_BYTES // 2))
        for number in range(5)
    ]
    await store.append(TENANT, [suspending(*large)])

    page = await store.pending_interrupts(TENANT, where, None, 5)

    newest_first = large[::-1]
    assert list(page.suspensions) == newest_first[:2]
    assert await pending(store, where) == newest_first
