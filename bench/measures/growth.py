"""The cost of a run on a host with many stored runs, and the memory per finished run.

The speed of a machine varies over time, so a full host is not compared with its earlier figures: a
new host runs in parallel, and the two are measured alternately.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import Rate, measure_rate
from bench.server import ServerProcess, serving_host

CLIENTS = 16
FILLING_CLIENTS = 64
NEW_HOST_RUNS = 1_000
AIM_GROWTH = 0.10
# The first runs fill the caches of the database and the arenas of the allocator, so memory is
# measured after them.
SETTLED_RUNS = 30_000
# The variation by the allocator alone.
AIM_KIB = 512


def measure_growth(size: Size, floors: Floors) -> list[Figure]:
    """Fill one host, and measure at several sizes."""
    figures: list[Figure] = []
    with serving_host() as served:
        filling = _Filling(served, size.memory_step)
        for stored in size.stored_runs:
            filling.up_to(stored)
            figures += _compare_with_new_host(filling, stored, size, floors)
        filling.up_to(size.stored_runs[-1] + size.memory_step)
    return [*figures, _memory(filling.samples)]


class _Filling:
    """Creates runs and samples the host's memory."""

    def __init__(self, served: ServerProcess, step: int) -> None:
        self._served = served
        self._step = step
        self._stored = 0
        self.samples: list[tuple[int, int]] = []

    def up_to(self, stored: int) -> None:
        """Create runs until `stored` runs are stored."""
        while self._stored < stored:
            count = min(self._step, stored - self._stored)
            self._create(FILLING_CLIENTS, count)
            self.samples.append((self._stored, self._served.rss_bytes()))

    def window(self, count: int) -> Rate:
        """Create runs with few clients and return their cost."""
        return self._create(CLIENTS, count)

    def _create(self, clients: int, count: int) -> Rate:
        self._stored += count
        job = Requests(
            port=self._served.port,
            clients=clients,
            requests=[wire.create_run("bench-noop")],
            count=count,
        )
        return measure_rate(self._served, job)


def _compare_with_new_host(
    filling: _Filling, stored: int, size: Size, floors: Floors
) -> list[Figure]:
    new_host_rates: list[Rate] = []
    rates: list[Rate] = []
    with serving_host() as served:
        new_host = _Filling(served, NEW_HOST_RUNS)
        new_host.up_to(NEW_HOST_RUNS)
        for _ in range(size.windows):
            new_host_rates.append(new_host.window(size.window_runs))
            rates.append(filling.window(size.window_runs))
    before = _cost(f"a run with {NEW_HOST_RUNS:,} stored runs", new_host_rates, floors)
    after = _cost(f"a run with {stored:,} stored runs", rates, floors)
    pairs = zip(new_host_rates, rates, strict=True)
    growth = statistics.median(full.cpu_us / new.cpu_us for new, full in pairs) - 1
    with_aim = replace(
        after,
        name=f"{after.name} ({growth:+.1%} CPU)",
        aim=f"under {AIM_GROWTH:.0%} growth",
        met=growth < AIM_GROWTH,
    )
    return [before, with_aim]


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


def _memory(samples: list[tuple[int, int]]) -> Figure:
    """Return the slope of memory over stored runs, by least squares."""
    settled = [point for point in samples if point[0] >= SETTLED_RUNS]
    slope = statistics.linear_regression(*zip(*(settled or samples), strict=True)).slope
    kib = slope * 10_000 / 1024
    return Figure(
        measure="growth",
        name=f"memory per 10,000 finished runs, now {samples[-1][1] / 2**20:.0f} MiB",
        value=kib,
        unit="KiB",
        aim=f"under {AIM_KIB} KiB" if settled else "none: the caches are still filling",
        met=kib < AIM_KIB if settled else None,
    )
