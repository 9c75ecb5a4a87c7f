"""One event to two hundred readers: a waiting run is paused and resumed, and all of them see it.

The clock is the load process's. It starts when the request is sent, so the figure holds the whole
way: request, commit on disk, and the last reader's receipt. The spread, from the first reader to
the last, is what the fan-out alone adds.
"""

from __future__ import annotations

import statistics

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.floors import READERS
from bench.load import Arrivals, FanOut, run_fan_out
from bench.server import Served, serving_host

AIM_MS = 20


def measure_fan_out(size: Size, floors: Floors) -> list[Figure]:
    """Measure the time to the last reader, over many pauses and resumes of one run."""
    with serving_host() as served:
        before = served.cpu_seconds()
        arrivals = run_fan_out(pausing_job(served, size))
        cpu = served.cpu_seconds() - before
    # Opening the streams is part of the CPU, and small beside what they then carry.
    cpu_us = 1e6 * cpu / (size.fan_outs * READERS)
    load_us = 1e6 * arrivals.cpu_seconds / (size.fan_outs * READERS)
    return [
        Figure(
            measure="fan-out",
            name=f"request to last of {READERS} readers, median",
            value=statistics.median(arrivals.last_ms),
            unit="ms",
            cpu_us=cpu_us,
            load_us=load_us,
            floor=floors.fan_out_ms,
            aim=f"within {AIM_MS} ms",
            met=statistics.median(arrivals.last_ms) <= AIM_MS,
        ),
        _spread(arrivals, floors),
        Figure(
            measure="fan-out",
            name=f"request to last of {READERS} readers, slowest of {size.fan_outs}",
            value=max(arrivals.last_ms),
            unit="ms",
            floor=floors.fan_out_ms,
        ),
    ]


def _spread(arrivals: Arrivals, floors: Floors) -> Figure:
    spreads = [
        last - first for first, last in zip(arrivals.first_ms, arrivals.last_ms, strict=True)
    ]
    return Figure(
        measure="fan-out",
        name=f"first to last of {READERS} readers, median",
        value=statistics.median(spreads),
        unit="ms",
        floor=floors.fan_out_ms,
    )


def pausing_job(served: Served, size: Size, *, told: Served | None = None) -> FanOut:
    """Pauses and resumes of one run, of which readers hear; another server may be told of them."""
    run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": "bench-wait"})
    path = str(run["statusUrl"])
    pause = wire.request("POST", f"{path}:pause", b'{"drainPolicy":"immediate"}')
    resume = wire.request("POST", f"{path}:resume", b"{}")
    rounds = size.fan_outs // 2
    return FanOut(
        port=served.port,
        readers=READERS,
        stream=wire.request("GET", str(run["eventsUrl"])),
        opened=b"event: run.started",
        triggers=[pause, resume] * rounds,
        marks=[b"event: run.paused", b"event: run.resumed"] * rounds,
        trigger_port=None if told is None else told.port,
    )
