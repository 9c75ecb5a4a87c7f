"""One event to two hundred readers: a waiting run is paused and resumed.

The load process measures the time from sending the request until the last reader has the event, so
the figure includes the request and the commit. The time from the first to the last reader is the
cost of the fan-out alone.
"""

from __future__ import annotations

import statistics

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.floors import READERS
from bench.load import Arrivals, FanOut, run_fan_out
from bench.server import ServerProcess, serving_host

AIM_MS = 20


def measure_fan_out(size: Size, floors: Floors) -> list[Figure]:
    """Measure the time to the last reader, over many pauses and resumes of one run."""
    with serving_host() as served:
        before = served.cpu_seconds()
        arrivals = run_fan_out(create_pause_job(served, size))
        cpu = served.cpu_seconds() - before
    # The CPU includes opening the streams, which is a small part.
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


def create_pause_job(
    served: ServerProcess, size: Size, *, trigger: ServerProcess | None = None
) -> FanOut:
    """Return a job that pauses and resumes one run. `trigger` is the server of the requests."""
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
        trigger_port=None if trigger is None else trigger.port,
    )
