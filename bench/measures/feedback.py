"""The summary of feedback: the cost of one week with few and with many other weeks stored."""

from __future__ import annotations

import time

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.filling import put_annotations, put_runs
from bench.load import Requests
from bench.rates import Rate, measure_rate
from bench.server import serving_host
from wopr.protocol.documents import to_iso
from wopr.store.port import Store

DAY_MS = 86_400_000
WINDOW_DAYS = 7
RUNS = 1_000
AIM_GROWTH = 0.10


def measure_feedback(size: Size, floors: Floors) -> list[Figure]:
    """Read one week, on a host with only that week and on a host with many weeks."""
    # All weeks have the same size, so only the number of other weeks differs.
    few = max(size.annotations // 100, 1_000)
    weeks = size.annotations // few
    first = _measure_summary(few, 1, size)
    many = _measure_summary(size.annotations, weeks, size)
    growth = many.cpu_us / first.cpu_us - 1
    return [
        _figure(f"summary of a week, {few:,} annotations in 1 week", first, floors, None),
        _figure(
            f"summary of a week, {size.annotations:,} annotations in {weeks} weeks ({growth:+.1%} CPU)",
            many,
            floors,
            growth,
        ),
    ]


def _measure_summary(annotations: int, weeks: int, size: Size) -> Rate:
    now = int(time.time() * 1000)
    window = WINDOW_DAYS * DAY_MS

    async def fill(store: Store) -> None:
        await put_runs(store, RUNS, now)
        await put_annotations(store, annotations, runs=RUNS, since=now - weeks * window, until=now)

    with serving_host(fill=fill) as served:
        # The annotations queue their runs for the fleet.
        served.wait_for_projections()
        path = f"/v1/feedback/summary?by=workflow&since={to_iso(now - window)}"
        job = Requests(
            port=served.port, clients=1, requests=[wire.request("GET", path)], seconds=size.seconds
        )
        return measure_rate(served, job)


def _figure(name: str, rate: Rate, floors: Floors, growth: float | None) -> Figure:
    floor = floors.echo[1]
    return Figure(
        measure="feedback",
        name=name,
        value=rate.per_second,
        unit="requests/s",
        cpu_us=rate.cpu_us,
        load_us=rate.load_us,
        floor=floor.rate,
        floor_cpu_us=floor.cpu_us,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
        aim="" if growth is None else f"under {AIM_GROWTH:.0%} growth",
        met=None if growth is None else growth < AIM_GROWTH,
    )
