from __future__ import annotations

from itertools import product

import pytest

from tests.support.rows import T0, TENANT, batch, ended
from wopr.store.port import RunFilter, RunRow, Store

pytestmark = pytest.mark.anyio

STATUSES = ("running", "paused", "completed")


@pytest.fixture
async def full(store: Store) -> Store:
    """Return a store with runs in every mix of status, workflow, tag and parent."""
    kinds = product(STATUSES, ("greet", "part"), (("blue",), ("blue", "red"), ()), ("parent", None))
    batches = [
        batch(
            f"run-{n:02}",
            status=status,
            workflow_id=workflow_id,
            tags=tags,
            parent_run_id=parent,
            created_at=T0 + n // 4,
            ended_at=T0 + 99 if status == "completed" else None,
        )
        for n, (status, workflow_id, tags, parent) in enumerate(kinds)
    ]
    await store.append(TENANT, batches)
    return store


async def pages(store: Store, where: RunFilter, size: int) -> list[list[RunRow]]:
    found: list[list[RunRow]] = []
    after: tuple[int, str] | None = None
    while True:
        page = await store.runs(TENANT, where, after, size)
        found.append(list(page.runs))
        if page.next_after is None:
            return found
        after = page.next_after


def matches(row: RunRow, where: RunFilter) -> bool:
    return (
        (not where.statuses or row.status in where.statuses)
        and where.workflow_id in (None, row.workflow_id)
        and (where.tag is None or where.tag in row.tags)
        and where.parent_run_id in (None, row.parent_run_id)
        and (where.created_from is None or row.created_at >= where.created_from)
        and (where.created_before is None or row.created_at < where.created_before)
    )


async def test_the_pages_contain_every_run_once_newest_first(full: Store) -> None:
    listed = [row for page in await pages(full, RunFilter(), 5) for row in page]

    keys = [(row.created_at, row.run_id) for row in listed]
    assert len(keys) == 36
    assert keys == sorted(set(keys), reverse=True)


async def test_every_filter_can_be_combined_with_every_other(full: Store) -> None:
    everything = [row for page in await pages(full, RunFilter(), 100) for row in page]
    combinations = product(
        ((), ("running",), ("completed", "paused"), ("paused", "paused")),
        (None, "greet"),
        (None, "red"),
        (None, "parent"),
        (None, T0 + 2),
        (None, T0 + 7),
    )

    for statuses, workflow_id, tag, parent, created_from, created_before in combinations:
        where = RunFilter(
            statuses=statuses,
            workflow_id=workflow_id,
            tag=tag,
            parent_run_id=parent,
            created_from=created_from,
            created_before=created_before,
        )
        listed = [row for page in await pages(full, where, 2) for row in page]
        assert listed == [row for row in everything if matches(row, where)], where


async def test_a_page_has_the_requested_length_and_the_last_one_is_marked(full: Store) -> None:
    listed = await pages(full, RunFilter(), 12)

    assert [len(page) for page in listed] == [12, 12, 12]


async def test_an_empty_page_has_no_next_page(full: Store) -> None:
    page = await full.runs(TENANT, RunFilter(workflow_id="unknown"), None, 10)

    assert (page.runs, page.next_after) == ((), None)


async def test_a_page_continues_below_its_key_even_above_the_time_filter(full: Store) -> None:
    where = RunFilter(created_before=T0 + 1)

    page = await full.runs(TENANT, where, (T0 + 8, "run-33"), 10)

    assert [row.run_id for row in page.runs] == ["run-03", "run-02", "run-01", "run-00"]


async def test_new_runs_do_not_change_the_following_pages(full: Store) -> None:
    first = await full.runs(TENANT, RunFilter(), None, 20)
    await full.append(TENANT, [batch("run-99", created_at=T0 + 99)])

    second = await full.runs(TENANT, RunFilter(), first.next_after, 20)

    assert [row.run_id for row in second.runs] == [f"run-{n:02}" for n in range(15, -1, -1)]


async def test_a_run_is_listed_under_its_current_status_only(store: Store) -> None:
    await store.append(TENANT, [batch()])

    await store.append(TENANT, [ended()])

    running = await store.runs(TENANT, RunFilter(statuses=("running",)), None, 10)
    completed = await store.runs(TENANT, RunFilter(statuses=("completed",)), None, 10)
    assert running.runs == ()
    assert [row.run_id for row in completed.runs] == ["run-1"]


async def test_a_list_has_no_snapshots(store: Store) -> None:
    await store.append(TENANT, [batch("run-1"), ended("run-1")])

    page = await store.runs(TENANT, RunFilter(), None, 10)

    assert [(row.run_id, row.status, row.snapshot) for row in page.runs] == [
        ("run-1", "completed", None)
    ]
