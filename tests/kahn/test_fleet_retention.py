from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fleet_rows import DAY, NOON, aggregate, end, held_lines, push, start
from tests.support.rows import OTHER, TENANT, batch
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.retention import FleetRetention, RetentionPolicy
from wopr.kahn.timestamps import from_millis
from wopr.kahn.views import Views
from wopr.protocol.errors import NotFound
from wopr.protocol.observed_ids import observed_run_id
from wopr.store.open import open_store
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    yield opened
    await opened.close()


def keeping(store: Store, now: int, days: int = 90) -> FleetRetention:
    return FleetRetention(store, lambda: now, RetentionPolicy.of_days(days))


async def test_pushed_runs_are_kept_forever_by_default(store: Store) -> None:
    await push(store, TENANT, [start("r-1", at=NOON - 4000 * DAY)])

    assert await keeping(store, NOON + 4000 * DAY, days=0).retain() == (0, 0)
    assert (await Views(store, lambda: NOON).find(TENANT, "r-1")).run_id == "r-1"


async def test_the_lines_of_the_host_s_own_runs_are_kept_for_ninety_days(store: Store) -> None:
    await LineWriter(store, lambda: NOON).put_own(TENANT, [start("r-1", at=NOON - 4000 * DAY)])

    assert await keeping(store, NOON + 90 * DAY - 1, days=0).retain() == (0, 0)
    assert await keeping(store, NOON + 90 * DAY, days=0).retain() == (1, 0)


async def test_a_limit_counts_from_the_last_push_and_not_from_the_producer_s_clock(
    store: Store,
) -> None:
    await push(store, TENANT, [start("r-1", at=NOON - 400 * DAY)])
    await push(store, TENANT, [end("r-1", at=NOON - 399 * DAY)], now=NOON + 5 * DAY)

    assert await keeping(store, NOON + 95 * DAY - 1).retain() == (0, 0)
    assert await keeping(store, NOON + 95 * DAY).retain() == (1, 0)


async def test_a_push_names_the_runs_that_expire_soon(store: Store) -> None:
    def ingest(now: int) -> Ingest:
        return Ingest(LineWriter(store, lambda: now), policy=RetentionPolicy.of_days(30))

    await ingest(NOON).push(TENANT, start("r-1") + b"\n" + start("r-2"))
    await ingest(NOON).push(OTHER, start("theirs"))
    early = await ingest(NOON + 22 * DAY).push(TENANT, start("r-3"))
    late = await ingest(NOON + 24 * DAY).push(TENANT, start("r-2"))
    after = await ingest(NOON + 29 * DAY).push(TENANT, start("r-4"))

    assert early.expiring == []
    [expiring] = late.expiring
    assert (expiring.run_id, expiring.drops_at) == ("r-1", from_millis(NOON + 30 * DAY))
    assert late.duplicate == 1
    # A push of stored lines keeps the run too.
    assert [each.run_id for each in after.expiring] == ["r-1"]


async def test_a_run_is_hidden_after_the_limit_and_deleted_a_week_later(store: Store) -> None:
    shown = observed_run_id(TENANT, "r-1")
    await store.append(TENANT, [batch(shown)])
    await push(store, TENANT, [start("r-1")])

    assert await keeping(store, NOON + 90 * DAY - 1).retain() == (0, 0)
    assert await keeping(store, NOON + 90 * DAY).retain() == (1, 0)
    with pytest.raises(NotFound):
        await Views(store, lambda: NOON).find(TENANT, "r-1")
    assert [piece async for piece in Views(store, lambda: NOON).export(TENANT)]
    assert await store.run(TENANT, shown) is not None

    assert await keeping(store, NOON + 97 * DAY - 1).retain() == (0, 0)
    assert await keeping(store, NOON + 97 * DAY).retain() == (0, 1)
    assert await held_lines(store, TENANT, "r-1") == []
    assert await store.run(TENANT, shown) is None


async def test_more_expired_runs_than_a_batch_are_all_deleted(store: Store) -> None:
    for tenant in (TENANT, OTHER):
        await push(store, tenant, [start(f"r-{number}") for number in range(250)])
    await push(store, TENANT, [start("young")], now=NOON + DAY)

    assert await keeping(store, NOON + 90 * DAY).retain() == (500, 0)
    assert await keeping(store, NOON + 97 * DAY).retain() == (1, 500)


async def test_moved_windows_show_the_runs_in_them(store: Store) -> None:
    await push(store, TENANT, [start("r-1"), end("r-1"), start("r-2", at=NOON + 2 * DAY)])

    await keeping(store, NOON + 3 * DAY).advance_windows()

    counts = {
        window: [row.run_count for row in await aggregate(store, TENANT, window, NOON + 3 * DAY)]
        for window in ("24h", "7d", "all")
    }
    assert counts == {"24h": [1], "7d": [2], "all": [2]}


async def test_an_export_has_the_runs_of_all_pages(store: Store) -> None:
    lines = [start(f"r-{number:03}") for number in range(450)]
    await push(store, TENANT, lines)

    pieces = [piece async for piece in Views(store, lambda: NOON).export(TENANT)]

    assert b"".join(pieces).splitlines() == lines
