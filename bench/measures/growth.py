"""What a run costs after many runs, and what memory they leave behind: one host, filled up."""

from __future__ import annotations

import statistics

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import Rate, measured
from bench.server import Served, serving_host

CLIENTS = 16
FILLING_CLIENTS = 64
AIM_GROWTH = 0.10
# The database's caches and the allocator's arenas fill with the first runs: what memory does
# before that says nothing.
SETTLED_RUNS = 30_000
# What the allocator alone moves from one look to the next.
AIM_KIB = 512


def measure_growth(size: Size, floors: Floors) -> list[Figure]:
    """Fill one host, and stop on the way to measure."""
    filling = _Filling(size.memory_step)
    figures: list[Figure] = []
    with serving_host() as served:
        for stored in size.stored_runs:
            filling.up_to(served, stored)
            rates = [filling.window(served, size.window_runs) for _ in range(size.windows)]
            figures.append(_cost(stored, rates, floors, figures))
        filling.up_to(served, size.stored_runs[-1] + size.memory_step)
    return [*figures, _memory(filling.seen)]


class _Filling:
    """Creates runs and looks at the host's memory every so many."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._stored = 0
        self.seen: list[tuple[int, int]] = []

    def up_to(self, served: Served, stored: int) -> None:
        """Create runs until so many are stored."""
        while self._stored < stored:
            count = min(self._step, stored - self._stored)
            self._create(served, FILLING_CLIENTS, count)
            self.seen.append((self._stored, served.rss_bytes()))

    def window(self, served: Served, count: int) -> Rate:
        """Create runs with few clients, and say what they cost."""
        return self._create(served, CLIENTS, count)

    def _create(self, served: Served, clients: int, count: int) -> Rate:
        self._stored += count
        job = Requests(
            port=served.port,
            clients=clients,
            requests=[wire.create_run("bench-noop")],
            count=count,
        )
        return measured(served, job)


def _cost(stored: int, rates: list[Rate], floors: Floors, earlier: list[Figure]) -> Figure:
    cpu_us = statistics.median(rate.cpu_us for rate in rates)
    first = earlier[0].cpu_us if earlier else None
    growth = None if first is None else cpu_us / first - 1
    floor = floors.run(CLIENTS)
    return Figure(
        measure="growth",
        name=f"a run after {stored:,} stored, {CLIENTS} clients"
        + ("" if growth is None else f" ({growth:+.1%} CPU)"),
        value=statistics.median(rate.per_second for rate in rates),
        unit="runs/s",
        cpu_us=cpu_us,
        load_us=statistics.median(rate.load_us for rate in rates),
        floor=floor.rate,
        floor_cpu_us=floor.cpu_us,
        aim="" if growth is None else f"under {AIM_GROWTH:.0%} growth",
        met=None if growth is None else growth < AIM_GROWTH,
    )


def _memory(seen: list[tuple[int, int]]) -> Figure:
    """The slope of memory over stored runs, by least squares."""
    settled = [point for point in seen if point[0] >= SETTLED_RUNS]
    slope = statistics.linear_regression(*zip(*(settled or seen), strict=True)).slope
    kib = slope * 10_000 / 1024
    return Figure(
        measure="growth",
        name=f"memory per 10,000 finished runs, now {seen[-1][1] / 2**20:.0f} MiB",
        value=kib,
        unit="KiB",
        aim=f"under {AIM_KIB} KiB" if settled else "none: its caches are still filling",
        met=kib < AIM_KIB if settled else None,
    )
