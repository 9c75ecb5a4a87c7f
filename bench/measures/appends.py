"""Appended events per second: through the store alone, and through runs of many nodes."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path

import msgspec

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import measure_rate
from bench.server import TENANT, scratch, serving_host
from bench.workflows import CHAIN_NODES
from wopr.protocol.events import RunEvent
from wopr.store.port import Batch, RunRow, StoredEvent
from wopr.store.sqlite import SqliteStore

WRITERS = 16
# Start and end of each node and of the run.
CHAIN_EVENTS = 2 * CHAIN_NODES + 2


def measure_appends(size: Size, floors: Floors) -> list[Figure]:
    """Measure the store in this process, then the whole host."""
    return [_through_the_store(size, floors), _through_a_run(size, floors)]


def _through_the_store(size: Size, floors: Floors) -> Figure:
    with scratch() as directory:
        cpu = time.process_time()
        events, seconds = asyncio.run(_append(directory / "wopr.db", floors.events, size.seconds))
        cpu = time.process_time() - cpu
    floor = floors.append[WRITERS]
    each = len(floors.events)
    return Figure(
        measure="appends",
        name=f"store port, {WRITERS} writers, {each} events and a run's row at once",
        value=events / seconds,
        unit="events/s",
        cpu_us=1e6 * cpu / events,
        floor=floor.rate * each,
        floor_cpu_us=floor.cpu_us / each,
    )


async def _append(path: Path, bodies: list[bytes], seconds: float) -> tuple[int, float]:
    types = [msgspec.json.decode(body, type=RunEvent).type for body in bodies]
    events = tuple(
        StoredEvent(sequence=n, type=kind, body=body)
        for n, (kind, body) in enumerate(zip(types, bodies, strict=True))
    )
    store = await SqliteStore.open(str(path))
    numbers = count()
    began = time.perf_counter()

    async def write() -> None:
        while time.perf_counter() - began < seconds:
            await store.append(TENANT, [_batch(next(numbers), events)])

    await asyncio.gather(*(write() for _ in range(WRITERS)))
    spent = time.perf_counter() - began
    await store.close()
    return next(numbers) * len(events), spent


def _batch(number: int, events: tuple[StoredEvent, ...]) -> Batch:
    row = RunRow(
        run_id=f"00000000-0000-7000-8000-{number:012d}",
        workflow_id="bench-noop",
        workflow_version="1.0",
        status="completed",
        created_at=number,
        updated_at=number,
        ended_at=number,
        last_sequence=len(events) - 1,
        snapshot=events[0].body,
    )
    return Batch(run=row, first=0, events=events)


def _through_a_run(size: Size, floors: Floors) -> Figure:
    with serving_host() as served:
        job = Requests(
            port=served.port,
            clients=WRITERS,
            requests=[wire.create_run("bench-chain")],
            seconds=size.seconds,
        )
        rate = measure_rate(served, job)
    floor = floors.append[WRITERS]
    each = len(floors.events)
    return Figure(
        measure="appends",
        name=f"runs of {CHAIN_NODES} nodes, {WRITERS} clients",
        value=rate.per_second * CHAIN_EVENTS,
        unit="events/s",
        cpu_us=rate.cpu_us / CHAIN_EVENTS,
        load_us=rate.load_us / CHAIN_EVENTS,
        floor=floor.rate * each,
        floor_cpu_us=floor.cpu_us / each,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
    )
