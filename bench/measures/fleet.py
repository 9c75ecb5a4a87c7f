"""The fleet: lines accepted per second, cost of a view with few and many runs, checker throughput."""

from __future__ import annotations

import time

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.fleet_data import demo_lines, pushes, put_fleet
from bench.load import Requests
from bench.rates import measure_rate
from bench.server import ServerProcess, serving_host
from wopr.kahn.checker import check

CLIENTS = 4
AIM_LINES = 50_000
AIM_MS = 50
READS = 60
CHECKED_BYTES = 20_000_000


def measure_fleet(size: Size, floors: Floors) -> list[Figure]:
    """Measure a whole host, and the checker in this process."""
    views = [figure for runs in size.fleet_runs for figure in _views(runs)]
    return [*_ingest(size), *views, _checker()]


def _ingest(size: Size) -> list[Figure]:
    bodies = list(pushes(size.fleet_pushes))
    lines = sum(body.count(b"\n") for body in bodies)
    with serving_host() as served:
        job = Requests(
            port=served.port,
            clients=CLIENTS,
            requests=[
                wire.request("POST", "/v1/ingest/transitions", body, "application/x-ndjson")
                for body in bodies
            ],
            count=len(bodies),
        )
        rate = measure_rate(served, job)
        built = _build(served, lines)
    per_second = lines / rate.responses.seconds
    accepted = Figure(
        measure="fleet",
        name=f"lines accepted in {len(bodies)} pushes of 1 MiB, {CLIENTS} clients",
        value=per_second,
        unit="lines/s",
        cpu_us=1e6 * rate.cpu_seconds / lines,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
        aim=f"{AIM_LINES:,} lines/s",
        met=per_second >= AIM_LINES,
    )
    return [accepted, built]


def _build(served: ServerProcess, lines: int) -> Figure:
    """Measure how long the host takes to build the observed runs of the lines."""
    began, cpu = time.perf_counter(), served.cpu_seconds()
    served.wait_for_projections()
    seconds = time.perf_counter() - began
    return Figure(
        measure="fleet",
        name="the same lines built as observed runs, after the pushes",
        value=lines / seconds,
        unit="lines/s",
        cpu_us=1e6 * (served.cpu_seconds() - cpu) / lines,
    )


def _views(runs: int) -> list[Figure]:
    now = time.time_ns() // 1_000_000
    with serving_host(fill=lambda store: put_fleet(store, runs, now)) as served:
        return [_view(served.port, runs, window) for window in ("24h", "7d", "all")]


def _view(port: int, runs: int, window: str) -> Figure:
    path = f"/api/agent-runs/aggregate?window={window}"
    times: list[float] = []
    for _ in range(READS):
        began = time.perf_counter()
        wire.call(port, "GET", path)
        times.append(1000 * (time.perf_counter() - began))
    times.sort()
    p50, p99 = times[READS // 2], times[int(READS * 0.99)]
    return Figure(
        measure="fleet",
        name=f"aggregate of {window}, {runs:,} runs of 50 agents",
        value=p50,
        unit="ms",
        p50_ms=p50,
        p99_ms=p99,
        aim=f"under {AIM_MS} ms",
        met=p50 < AIM_MS,
    )


def _checker() -> Figure:
    lines = demo_lines()
    size = sum(map(len, lines))
    repeats = max(1, CHECKED_BYTES // size)
    cpu = time.process_time()
    for _ in range(repeats):
        for _ in check(lines):
            pass
    cpu = time.process_time() - cpu
    return Figure(
        measure="fleet",
        name="checker, lines of the demo fleet",
        value=size * repeats / cpu / 1e6,
        unit="MB/s",
        cpu_us=1e6 * cpu / (len(lines) * repeats),
    )
