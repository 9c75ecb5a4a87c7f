"""The newest version of a workflow is read once for concurrent requests, and is current at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates, two_benches
from tests.support.postgres.databases import Databases
from wopr.runs.definitions import library
from wopr.runs.definitions.library import NEWEST_KEPT_MS
from wopr.store.port import WorkflowRow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

ASKERS = 50


class SlowReads:
    """Reads of workflows that block until the test releases them."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.begun = anyio.Event()
        self.may_go_on = anyio.Event()
        self._read = bench.host.store.workflow
        monkeypatch.setattr(bench.host.store, "workflow", self._slowly)

    async def _slowly(
        self, tenant: str, workflow_id: str, version: str | None = None
    ) -> WorkflowRow | None:
        self.count += 1
        self.begun.set()
        row = await self._read(tenant, workflow_id, version)
        await self.may_go_on.wait()
        return row


async def newest(bench: Bench, workflow_id: str) -> str:
    return (await bench.host.library.newest(TENANT, workflow_id)).version


async def test_concurrent_requests_share_one_read(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = await ours.register([node("a")], version="1.0.0")
    reads = SlowReads(ours, monkeypatch)
    found: list[str] = []

    async def ask() -> None:
        found.append(await newest(ours, workflow_id))

    async with anyio.create_task_group() as tasks:
        for _ in range(ASKERS):
            tasks.start_soon(ask)
        await reads.begun.wait()
        reads.may_go_on.set()

    assert found == ["1.0.0"] * ASKERS
    assert reads.count == 1


async def test_compiled_patterns_count_in_the_bytes_of_the_cache(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_COMPILED_BYTES", 2_000_000)
    schema = {"pattern": r"^\pL{18}$"}
    one, other = [
        await ours.register([node("a")], version="1.0.0", configurableSchema=schema)
        for _ in range(2)
    ]

    first = await ours.host.library.version(TENANT, one, "1.0.0")
    assert await ours.host.library.version(TENANT, one, "1.0.0") is first
    await ours.host.library.version(TENANT, other, "1.0.0")

    assert await ours.host.library.version(TENANT, one, "1.0.0") is not first


async def test_a_stale_response_is_sent_while_the_workflow_is_read_again(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = await ours.register([node("a")], version="1.0.0")
    # On PostgreSQL the notification of the registration can arrive at any time from here on.
    monkeypatch.setattr(ours.host.library, "forget_newest", lambda: None)
    assert await newest(ours, workflow_id) == "1.0.0"
    reads = SlowReads(ours, monkeypatch)
    ours.clock.now += NEWEST_KEPT_MS

    for _ in range(ASKERS):
        assert await newest(ours, workflow_id) == "1.0.0"
    await reads.begun.wait()

    assert reads.count == 1
    reads.may_go_on.set()


async def test_a_version_registered_here_during_a_read_is_the_newest_afterwards(
    ours: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = await ours.register([node("a")], version="1.0.0")
    with monkeypatch.context() as slow:
        reads = SlowReads(ours, slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(newest, ours, workflow_id)
            await reads.begun.wait()
            reads.may_go_on.set()
            await ours.register([node("a"), node("b")], id=workflow_id, version="2.0.0")

    assert await newest(ours, workflow_id) == "2.0.0"


@pytest.fixture
async def both(
    tmp_path: Path, gates: Gates, databases: Databases
) -> AsyncIterator[tuple[Bench, Bench]]:
    with databases.lent() as url:
        async with two_benches(tmp_path, gates, url) as running:
            yield running


async def test_a_version_registered_elsewhere_becomes_the_newest_by_notification(
    both: tuple[Bench, Bench],
) -> None:
    one, two = both
    workflow_id = await one.register([node("a")], version="1.0.0")
    assert await newest(two, workflow_id) == "1.0.0"

    await one.register([node("a"), node("b")], id=workflow_id, version="2.0.0")

    # The clock of these hosts stands still, so nothing expires.
    async def is_heard() -> bool:
        return await newest(two, workflow_id) == "2.0.0"

    await eventually_async(is_heard)
