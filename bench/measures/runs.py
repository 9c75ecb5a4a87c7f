"""Runs created and completed per second: one request, one `core.noop` node, four events on disk."""

from __future__ import annotations

from bench import wire
from bench.figures import CLIENTS, Figure, Floors, Size, format_clients
from bench.load import Requests
from bench.rates import measure_rate
from bench.server import ServerProcess, serving_host

WARM_UP_RUNS = 500
AIM_CLIENTS = 16
AIM_CPU_US = 400


def measure_runs(size: Size, floors: Floors) -> list[Figure]:
    """Measure with 1, 16 and 64 clients, each on its own host."""
    figures: list[Figure] = []
    for clients in CLIENTS:
        with serving_host() as served:
            figures.append(_figure(served, clients, size, floors))
    return figures


def _figure(served: ServerProcess, clients: int, size: Size, floors: Floors) -> Figure:
    requests = [wire.create_run("bench-noop")]
    measure_rate(
        served,
        Requests(port=served.port, clients=clients, requests=requests, count=WARM_UP_RUNS),
    )
    rate = measure_rate(
        served,
        Requests(port=served.port, clients=clients, requests=requests, seconds=size.seconds),
    )
    floor = floors.run(clients)
    has_aim = clients == AIM_CLIENTS
    return Figure(
        measure="runs",
        name=f"created and completed, {format_clients(clients)}",
        value=rate.per_second,
        unit="runs/s",
        cpu_us=rate.cpu_us,
        load_us=rate.load_us,
        floor=floor.rate,
        floor_cpu_us=floor.cpu_us,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
        aim=f"at most {AIM_CPU_US} us CPU" if has_aim else "",
        met=rate.cpu_us <= AIM_CPU_US if has_aim else None,
    )
