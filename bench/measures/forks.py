"""A fork of a long run: its time by the number of copied events, and its effect on other runs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import Rate, measure_rate
from bench.server import ServerProcess, serving_host
from bench.workflows import agent
from wopr.protocol.documents import JsonObject

# A call and its return are two events.
LENGTHS = (1_000, 5_000)
ROUNDS = 5
CLIENTS = 4
# The fixed part, such as the request, counts less in a longer history.
AIM_RATIO = 1.25


def measure_forks(size: Size, floors: Floors) -> list[Figure]:
    """Fork at the end of runs of several lengths, then in parallel with other runs."""
    with serving_host("--conformance") as served:
        sources = [_create_long_run(served, length) for length in LENGTHS]
        times = [_median_ms(served, source) for source in sources]
        alone = _measure_noops(served, size)
        with _forks_in_background(served, sources[-1]):
            in_parallel = _measure_noops(served, size)
    return [
        *_branch_figures(times),
        _rate_figure("alone", alone),
        _rate_figure("in parallel with forks", in_parallel),
    ]


def _create_long_run(served: ServerProcess, length: int) -> JsonObject:
    definition = agent(f"conformance-bench-{length}", length // 2)
    wire.call(served.port, "POST", "/v1/workflows", definition)
    run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": definition["id"]})
    return wait_for_end(served, run["runId"])


def wait_for_end(served: ServerProcess, run_id: str) -> JsonObject:
    """Wait for the end of a run and return its snapshot."""
    while True:
        found: JsonObject = wire.call(served.port, "GET", f"/v1/runs/{run_id}")
        if found["status"] not in ("pending", "running"):
            return found
        time.sleep(0.002)


def _median_ms(served: ServerProcess, source: JsonObject) -> float:
    return statistics.median(_fork_ms(served, source) for _ in range(ROUNDS))


def _fork_ms(served: ServerProcess, source: JsonObject) -> float:
    """Return the milliseconds until a branch has copied all events but the last, and has ended."""
    began = time.perf_counter()
    body = {"mode": "branch", "fromSeq": source["lastSequence"]}
    fork = wire.call(served.port, "POST", f"/v1/runs/{source['runId']}:fork", body)
    wait_for_end(served, fork["runId"])
    return 1000 * (time.perf_counter() - began)


@contextmanager
def _forks_in_background(served: ServerProcess, source: JsonObject) -> Iterator[None]:
    """Fork repeatedly during the block."""
    is_over = threading.Event()

    def fork() -> None:
        while not is_over.is_set():
            _fork_ms(served, source)

    thread = threading.Thread(target=fork)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _measure_noops(served: ServerProcess, size: Size) -> Rate:
    job = Requests(
        port=served.port,
        clients=CLIENTS,
        requests=[wire.create_run("bench-noop")],
        seconds=size.seconds,
    )
    return measure_rate(served, job)


def _branch_figures(times: list[float]) -> Iterator[Figure]:
    per_event = [ms / length for ms, length in zip(times, LENGTHS, strict=True)]
    for length, ms in zip(LENGTHS, times, strict=True):
        is_long = length == LENGTHS[-1]
        ratio = per_event[-1] / per_event[0]
        yield Figure(
            measure="forks",
            name=f"branch after {length:,} events"
            + (f" ({ratio:.2f} times the time per event)" if is_long else ""),
            value=ms,
            unit="ms",
            aim=f"at most {AIM_RATIO} times" if is_long else "",
            met=ratio <= AIM_RATIO if is_long else None,
        )


def _rate_figure(name: str, rate: Rate) -> Figure:
    return Figure(
        measure="forks",
        name=f"one-node runs {name}, {CLIENTS} clients",
        value=rate.per_second,
        unit="runs/s",
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
    )
