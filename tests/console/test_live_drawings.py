"""Drawings of watched runs: how long they are kept, and how many bytes of them."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from wopr.console.page import PageRequest
from wopr.console.runs import live
from wopr.console.runs.live import MOST_BYTES, MarkupCache, RunDrawing, RunDrawings
from wopr.process.tenant_slots import HeavyReads

pytestmark = pytest.mark.anyio

HEAVY_READS = HeavyReads(2)


def visit_of(tenant: str) -> PageRequest:
    host = SimpleNamespace(heavy_reads=HEAVY_READS)
    caller = SimpleNamespace(scopes=frozenset({"runs:read"}))
    visit = SimpleNamespace(tenant=tenant, query={}, caller=caller, host=host)
    return cast("PageRequest", visit)


class Drawings:
    """Draw runs of a given size, and never finish the drawing of the run `slow`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.drawn: list[str] = []

    async def draw(self, visit: PageRequest, name: str, cache: MarkupCache) -> RunDrawing:
        self.drawn.append(name)
        if name == "slow":
            await anyio.sleep_forever()
        view = SimpleNamespace(log=SimpleNamespace(size=self.size))
        return RunDrawing(view, {}, {}, anyio.current_time(), 0.0)  # type: ignore[arg-type]  # its log is all that is used


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> Drawings:
    drawings = Drawings(MOST_BYTES // 4)
    monkeypatch.setattr(live, "_draw", drawings.draw)
    return drawings


async def test_readers_share_a_drawing_and_nothing_is_kept_after_they_leave(
    drawings: Drawings,
) -> None:
    parts, visit, moment = RunDrawings(), visit_of("acme"), anyio.current_time()

    with parts.watching(visit, "one"), parts.watching(visit, "one"):
        first = await parts.since(visit, "one", moment)
        second = await parts.since(visit, "one", moment)
        kept = parts.size

    assert first is second
    assert kept == drawings.size
    assert parts.size == 0


async def test_drawings_beyond_the_byte_limit_are_dropped_and_made_again(
    drawings: Drawings,
) -> None:
    parts, visit, moment = RunDrawings(), visit_of("acme"), anyio.current_time()
    names = [f"run-{number}" for number in range(10)]

    with ExitStack() as watched:
        for name in names:
            watched.enter_context(parts.watching(visit, name))
            await parts.since(visit, name, moment)
        kept = parts.size
        await parts.since(visit, names[-1], moment)
        await parts.since(visit, names[0], moment)

    assert kept <= MOST_BYTES
    assert drawings.drawn == [*names, names[0]]


async def test_a_slow_drawing_delays_no_other_tenant(drawings: Drawings) -> None:
    parts, moment = RunDrawings(), anyio.current_time()
    slow, other = visit_of("acme"), visit_of("other")

    async with anyio.create_task_group() as tasks:
        with parts.watching(slow, "slow"), parts.watching(other, "one"):
            tasks.start_soon(parts.since, slow, "slow", moment)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(30):
                await parts.since(other, "one", moment)
            tasks.cancel_scope.cancel()

    assert drawings.drawn == ["slow", "one"]
