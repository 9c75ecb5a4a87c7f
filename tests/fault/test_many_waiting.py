from __future__ import annotations

import asyncio
import gc
import sqlite3
from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fault.waiting import answer
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench
from tests.support.interrupts import ACCEPT, external, gate
from wopr.runs.active import ActiveRun
from wopr.runs.journal import Commit
from wopr.security.redact import Redactor
from wopr.services.telemetry.tracing import Tracing
from wopr.store.port import SuspensionFilter
from wopr.store.tables.dialect import SQLITE
from wopr.store.tables.runs.suspensions import pending_listing

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

MANY = 10_000


# Many


@pytest.mark.sqlite("it counts the instructions of SQLite itself")
async def test_ten_thousand_waiting_runs_use_no_memory_and_no_page_is_slower(
    ours: Bench,
) -> None:
    workflow = await ours.register([gate()])
    tasks = len(asyncio.all_tasks())
    await create_many(ours, workflow, 300)
    few = await steps_of_a_page(ours)

    await create_many(ours, workflow, MANY - 300)

    async def is_quiet() -> bool:
        # Tasks that started with the host may have ended since.
        return not ours.host.advancer.active.runs and len(asyncio.all_tasks()) <= tasks

    assert await ours.host.store.count_pending_interrupts(TENANT) == MANY
    await eventually_async(is_quiet)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, ActiveRun)]
    assert await steps_of_a_page(ours) <= few * 1.05


async def create_many(ours: Bench, workflow: str, count: int) -> None:
    """Create runs, a hundred concurrently so that they share their commits."""
    room = anyio.CapacityLimiter(100)

    async def create() -> None:
        async with room:
            await ours.create(workflow)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(create)


async def steps_of_a_page(ours: Bench) -> int:
    """Return the number of instructions that the database executes for the inbox's first page."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    assert isinstance(ours.database, Path)
    database = sqlite3.connect(ours.database)
    try:
        database.set_progress_handler(tick, 1)
        rows = database.execute(
            *pending_listing(SQLITE, TENANT, SuspensionFilter(), None, 51)
        ).fetchall()
    finally:
        database.close()
    assert len(rows) == 51
    return count


# Traces


async def test_a_trace_shows_the_waits_of_a_run(ours: Bench) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(ours.host.store, Redactor(), SimpleSpanProcessor(exporter))
    run_id = await ours.create(await ours.register([gate(), external()]))
    await answer(ours, run_id, ACCEPT)
    await answer(ours, run_id, {"orderId": "o1"}, "wait")

    tracing.handle_commit(Commit(TENANT, (await ours.loaded(run_id)).state, ()))
    await tracing.close()

    spans = {
        str((span.attributes or {}).get("openwop.node_id", "run")): span
        for span in exporter.get_finished_spans()
    }
    told = {
        name: (span.attributes or {}).get("openwop.interrupt_kind") for name, span in spans.items()
    }
    assert told == {"run": None, "gate": "approval", "wait": "external-event"}
    assert (spans["gate"].attributes or {})["openwop.interrupt_id"] == "int-gate:0"
    assert (spans["run"].attributes or {})["openwop.interrupt_count"] == 2
