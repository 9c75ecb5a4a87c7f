"""`RunReader` with a slow store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest

from wopr.process.tenant_slots import LARGE_RUN_BYTES, MAX_WAITING_READS, HeavyReads
from wopr.protocol.errors import Unavailable
from wopr.runs.event_bus import Bus
from wopr.runs.run_reader import RunReader
from wopr.store.port import RunRow, StoredEvent

pytestmark = pytest.mark.anyio

STARTED = StoredEvent(sequence=0, type="run.started", body=b"{}")
LARGE = StoredEvent(sequence=0, type="run.started", body=b'"%b"' % (b"x" * LARGE_RUN_BYTES))


class Log:
    """A store with one event of each run, which it returns after other tasks have run."""

    async def read(
        self, tenant: str, run_id: str, start: int, limit: int, *, most_bytes: int
    ) -> list[StoredEvent]:
        await anyio.lowlevel.checkpoint()
        return [] if start else [LARGE if run_id == "large" else STARTED]

    async def run(self, tenant: str, run_id: str) -> RunRow:
        """Return an ended run, with a large snapshot if its name says so."""
        return RunRow(
            run_id=run_id,
            workflow_id="hello",
            workflow_version="1",
            status="completed",
            created_at=0,
            updated_at=0,
            last_sequence=0,
            snapshot=b"x" * (LARGE_RUN_BYTES if run_id == "large" else 10),
        )


class EndingLog(Log):
    """A store whose run ends right after the first read of its log."""

    has_ended = False

    async def read(
        self, tenant: str, run_id: str, start: int, limit: int, *, most_bytes: int
    ) -> list[StoredEvent]:
        found = await super().read(tenant, run_id, start, limit, most_bytes=most_bytes)
        had_ended, self.has_ended = self.has_ended, True
        return found if had_ended else []


async def nothing_to_catch_up_with(tenant: str, run_id: str) -> None:
    pass


def run_reader_with(heavy_reads: HeavyReads, log: Log | None = None) -> RunReader:
    advancer = SimpleNamespace(journal=SimpleNamespace(store=log or Log()))
    return RunReader(advancer, Bus(9), nothing_to_catch_up_with, heavy_reads)  # type: ignore[arg-type]  # its store is all that is used


@asynccontextmanager
async def no_turn_left(reads: HeavyReads) -> AsyncGenerator[None, None]:
    """Let a tenant use its slot and fill its queue, for the length of a block."""
    done = anyio.Event()

    async def read() -> None:
        async with reads.slot("acme"):
            await done.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_WAITING_READS + 1):
            tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        yield
        done.set()


async def test_logged_events_are_returned_even_after_the_deadline() -> None:
    run_reader = run_reader_with(HeavyReads(1))

    found = await run_reader.wait_for_events("acme", "run-1", 0, seconds=0)

    assert found == [STARTED]


async def test_events_written_while_a_run_ends_are_returned() -> None:
    run_reader = run_reader_with(HeavyReads(1), EndingLog())

    found = await run_reader.wait_for_events("acme", "run-1", 0, seconds=60)

    assert found == [STARTED]


async def test_a_read_of_a_large_log_uses_a_slot_and_one_of_a_small_log_does_not() -> None:
    reads = HeavyReads(1)
    run_reader = run_reader_with(reads)

    async with no_turn_left(reads):
        # The first request learns that the log is large; the second one knows it.
        for _ in range(2):
            with pytest.raises(Unavailable, match="reads of large runs of this tenant are waiting"):
                await run_reader.log_document("acme", "large", 0, lambda _: True)
        small = await run_reader.log_document("acme", "small", 0, lambda _: True)
    large = await run_reader.log_document("acme", "large", 0, lambda _: True)

    assert small == b'{"events":[{}]}'
    assert large == b'{"events":[%b]}' % LARGE.body


async def test_a_request_for_a_large_run_uses_a_slot_and_one_for_a_small_run_does_not() -> None:
    reads = HeavyReads(1)
    run_reader = run_reader_with(reads)

    async with no_turn_left(reads):
        # The first request learns that the run is large; the second one knows it.
        for _ in range(2):
            with pytest.raises(Unavailable, match="reads of large runs of this tenant are waiting"):
                await run_reader.snapshot_with_slot("acme", "large")
        small = await run_reader.snapshot_with_slot("acme", "small")
    large = await run_reader.snapshot_with_slot("acme", "large")

    assert len(small.body) == 10
    assert len(large.body) == LARGE_RUN_BYTES
