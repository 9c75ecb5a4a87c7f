from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.builders import OTHER, TENANT, batch
from tests.contract.fleet import DAY, NOON, aggregate, end, held_lines, push, start
from wopr.fleet.keeping import Keeping
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.views import Views
from wopr.protocol.errors import NotFound
from wopr.store.open import open_store
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    yield opened
    await opened.close()


def keeping(store: Store, now: int) -> Keeping:
    return Keeping(store, lambda: now)


async def test_a_run_is_hidden_after_ninety_days_and_gone_a_week_later(store: Store) -> None:
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


async def test_more_runs_than_are_taken_at_once_all_go(store: Store) -> None:
    for tenant in (TENANT, OTHER):
        await push(store, tenant, [start(f"r-{number}") for number in range(250)])
    await push(store, TENANT, [start("young", at=NOON + DAY)])

    assert await keeping(store, NOON + 90 * DAY).retain() == (500, 0)
    assert await keeping(store, NOON + 97 * DAY).retain() == (1, 500)


async def test_windows_that_have_moved_on_show_what_lies_in_them(store: Store) -> None:
    await push(store, TENANT, [start("r-1"), end("r-1"), start("r-2", at=NOON + 2 * DAY)])

    await keeping(store, NOON + 3 * DAY).settle()

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
