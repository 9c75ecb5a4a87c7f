"""Renderings of watched runs: how long they are kept, and how many bytes of them."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from wopr.console.page import PageRequest
from wopr.console.runs import live
from wopr.console.runs.live import MAX_BYTES, MarkupCache, RunRendering, RunRenderings
from wopr.process.tenant_slots import HeavyReads

pytestmark = pytest.mark.anyio

HEAVY_READS = HeavyReads(2)


def page_request(tenant: str) -> PageRequest:
    host = SimpleNamespace(heavy_reads=HEAVY_READS)
    caller = SimpleNamespace(scopes=frozenset({"runs:read"}))
    request = SimpleNamespace(tenant=tenant, query={}, caller=caller, host=host)
    return cast("PageRequest", request)


class Renderings:
    """Render runs of a given size, and never finish the rendering of the run `slow`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rendered: list[str] = []

    async def render(self, request: PageRequest, name: str, cache: MarkupCache) -> RunRendering:
        self.rendered.append(name)
        if name == "slow":
            await anyio.sleep_forever()
        view = SimpleNamespace(log=SimpleNamespace(size=self.size))
        return RunRendering(view, {}, {}, anyio.current_time(), 0.0)  # type: ignore[arg-type]  # its log is all that is used


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Renderings:
    renderings = Renderings(MAX_BYTES // 4)
    monkeypatch.setattr(live, "_render", renderings.render)
    return renderings


async def test_readers_share_a_rendering_and_nothing_is_kept_after_they_leave(
    renderings: Renderings,
) -> None:
    parts, request, moment = RunRenderings(), page_request("acme"), anyio.current_time()

    with parts.watching(request, "one"), parts.watching(request, "one"):
        first = await parts.rendering_since(request, "one", moment)
        second = await parts.rendering_since(request, "one", moment)
        kept = parts.size

    assert first is second
    assert kept == renderings.size
    assert parts.size == 0


async def test_renderings_beyond_the_byte_limit_are_dropped_and_made_again(
    renderings: Renderings,
) -> None:
    parts, request, moment = RunRenderings(), page_request("acme"), anyio.current_time()
    names = [f"run-{number}" for number in range(10)]

    with ExitStack() as watched:
        for name in names:
            watched.enter_context(parts.watching(request, name))
            await parts.rendering_since(request, name, moment)
        kept = parts.size
        await parts.rendering_since(request, names[-1], moment)
        await parts.rendering_since(request, names[0], moment)

    assert kept <= MAX_BYTES
    assert renderings.rendered == [*names, names[0]]


async def test_a_slow_rendering_delays_no_other_tenant(renderings: Renderings) -> None:
    parts, moment = RunRenderings(), anyio.current_time()
    slow, other = page_request("acme"), page_request("other")

    async with anyio.create_task_group() as tasks:
        with parts.watching(slow, "slow"), parts.watching(other, "one"):
            tasks.start_soon(parts.rendering_since, slow, "slow", moment)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(30):
                await parts.rendering_since(other, "one", moment)
            tasks.cancel_scope.cancel()

    assert renderings.rendered == ["slow", "one"]
