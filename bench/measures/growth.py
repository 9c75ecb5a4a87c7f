"""What a run costs after many runs, and what memory they leave behind: one host, filled up.

A machine is not the same from one minute to the next, so a full host is never compared with what
it was earlier: a fresh one runs beside it, and the two are measured in turn.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import Rate, measured
from bench.server import Served, serving_host

CLIENTS = 16
FILLING_CLIENTS = 64
FRESH_RUNS = 1_000
AIM_GROWTH = 0.10
# The database's caches and the allocator's arenas fill with the first runs: what memory does
# before that says nothing.
SETTLED_RUNS = 30_000
# What the allocator alone moves from one look to the next.
AIM_KIB = 512


def measure_growth(size: Size, floors: Floors) -> list[Figure]:
    """Fill one host, and stop on the way to measure."""
    figures: list[Figure] = []
    with serving_host() as served:
        filling = _Filling(served, size.memory_step)
        for stored in size.stored_runs:
            filling.up_to(stored)
            figures += _beside_a_fresh_host(filling, stored, size, floors)
        filling.up_to(size.stored_runs[-1] + size.memory_step)
    return [*figures, _memory(filling.seen)]


class _Filling:
    """Creates runs and looks at the host's memory every so many."""

    def __init__(self, served: Served, step: int) -> None:
        self._served = served
        self._step = step
        self._stored = 0
        self.seen: list[tuple[int, int]] = []

    def up_to(self, stored: int) -> None:
        """Create runs until so many are stored."""
        while self._stored < stored:
            count = min(self._step, stored - self._stored)
            self._create(FILLING_CLIENTS, count)
            self.seen.append((self._stored, self._served.rss_bytes()))

    def window(self, count: int) -> Rate:
        """Create runs with few clients, and say what they cost."""
        return self._create(CLIENTS, count)

    def _create(self, clients: int, count: int) -> Rate:
        self._stored += count
        job = Requests(
            port=self._served.port,
            clients=clients,
            requests=[wire.create_run("bench-noop")],
            count=count,
        )
        return measured(self._served, job)


def _beside_a_fresh_host(
    filling: _Filling, stored: int, size: Size, floors: Floors
) -> list[Figure]:
    fresh_rates: list[Rate] = []
    rates: list[Rate] = []
    with serving_host() as served:
        emptier = _Filling(served, FRESH_RUNS)
        emptier.up_to(FRESH_RUNS)
        for _ in range(size.windows):
            fresh_rates.append(emptier.window(size.window_runs))
            rates.append(filling.window(size.window_runs))
    before = _cost(f"a run after {FRESH_RUNS:,} stored", fresh_rates, floors)
    after = _cost(f"a run after {stored:,} stored", rates, floors)
    pairs = zip(fresh_rates, rates, strict=True)
    growth = statistics.median(full.cpu_us / fresh.cpu_us for fresh, full in pairs) - 1
    judged = replace(
        after,
        name=f"{after.name} ({growth:+.1%} CPU)",
        aim=f"under {AIM_GROWTH:.0%} growth",
        met=growth < AIM_GROWTH,
    )
    return [before, judged]


def _cost(name: str, rates: list[Rate], floors: Floors) -> Figure:
    floor = floors.run(CLIENTS)
    return Figure(
        measure="growth",
        name=name,
        value=statistics.median(rate.per_second for rate in rates),
        unit="runs/s",
        cpu_us=statistics.median(rate.cpu_us for rate in rates),
        load_us=statistics.median(rate.load_us for rate in rates),
        floor=floor.rate,
        floor_cpu_us=floor.cpu_us,
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
