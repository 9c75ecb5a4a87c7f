"""Polls and snapshots per second, over a thousand finished runs."""

from __future__ import annotations

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import measure_rate
from bench.server import ServerProcess, serving_host

RUNS = 1000
CLIENTS = 16


def measure_reads(size: Size, floors: Floors) -> list[Figure]:
    """Measure both on one host."""
    with serving_host() as served:
        job = Requests(
            port=served.port,
            clients=CLIENTS,
            requests=[wire.create_run("bench-noop")],
            count=RUNS,
            keep=RUNS,
        )
        run_ids = measure_rate(served, job).responses.run_ids
        poll = "/v1/runs/{}/events/poll?lastSequence=-1&timeout=1"
        return [
            _figure(served, f"poll of 4 events, {CLIENTS} clients", poll, run_ids, size, floors),
            _figure(served, f"snapshot, {CLIENTS} clients", "/v1/runs/{}", run_ids, size, floors),
        ]


def _figure(
    served: ServerProcess, name: str, path: str, run_ids: list[str], size: Size, floors: Floors
) -> Figure:
    requests = [wire.request("GET", path.format(run_id)) for run_id in run_ids]
    job = Requests(port=served.port, clients=CLIENTS, requests=requests, seconds=size.seconds)
    rate = measure_rate(served, job)
    floor = floors.echo[CLIENTS]
    return Figure(
        measure="reads",
        name=name,
        value=rate.per_second,
        unit="requests/s",
        cpu_us=rate.cpu_us,
        load_us=rate.load_us,
        floor=floor.rate,
        floor_cpu_us=floor.cpu_us,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
    )
