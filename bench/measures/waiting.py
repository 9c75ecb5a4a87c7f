"""Ten thousand waiting runs: their memory, and the time to list the inbox."""

from __future__ import annotations

import statistics

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import Rate, measure_rate
from bench.server import ServerProcess, serving_host

FEW, MANY = 1_000, 10_000
STEP = 1_000
CLIENTS = 16
LISTING_CLIENTS = 1
# The first runs fill the caches of the database and the arenas of the allocator.
SETTLED = 3_000
# The variation by the allocator alone over ten thousand runs.
AIM_KIB = 4_096
AIM_GROWTH = 0.10


def measure_waiting(size: Size, floors: Floors) -> list[Figure]:
    """Fill one host with waiting runs, and list its inbox with few and with many of them."""
    with serving_host() as served:
        samples = _fill(served, FEW)
        few = _list(served, size)
        samples += _fill(served, MANY - FEW, already=FEW)
        many = _list(served, size)
    first = _listing(FEW, few, floors, None)
    return [_memory(samples), first, _listing(MANY, many, floors, first)]


def _fill(served: ServerProcess, count: int, already: int = 0) -> list[tuple[int, int]]:
    """Create waiting runs and sample the host's memory."""
    samples: list[tuple[int, int]] = []
    for waiting in range(already + STEP, already + count + 1, STEP):
        job = Requests(
            port=served.port,
            clients=CLIENTS,
            requests=[wire.create_run("bench-gate")],
            count=STEP,
        )
        measure_rate(served, job)
        samples.append((waiting, served.rss_bytes()))
    return samples


def _list(served: ServerProcess, size: Size) -> Rate:
    job = Requests(
        port=served.port,
        clients=LISTING_CLIENTS,
        requests=[wire.request("GET", "/v1/interrupts?limit=50")],
        seconds=size.seconds,
    )
    return measure_rate(served, job)


def _memory(samples: list[tuple[int, int]]) -> Figure:
    """Return the slope of memory over waiting runs, by least squares, after warm-up."""
    settled = [point for point in samples if point[0] >= SETTLED]
    kib = statistics.linear_regression(*zip(*settled, strict=True)).slope * MANY / 1024
    return Figure(
        measure="waiting",
        name=f"memory of {MANY:,} waiting runs, at {samples[-1][1] / 2**20:.0f} MiB",
        value=kib,
        unit="KiB",
        aim=f"under {AIM_KIB:,} KiB",
        met=kib < AIM_KIB,
    )


def _listing(waiting: int, rate: Rate, floors: Floors, first: Figure | None) -> Figure:
    earlier = None if first is None else first.cpu_us
    growth = None if earlier is None else rate.cpu_us / earlier - 1
    floor = floors.echo[LISTING_CLIENTS]
    return Figure(
        measure="waiting",
        name=f"list the inbox, 50 of {waiting:,}"
        + ("" if growth is None else f" ({growth:+.1%} CPU)"),
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
