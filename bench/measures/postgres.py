"""Several processes on one PostgreSQL: the total cost of a run, and the failover after a crash.

The CPU is the sum of all processes of the host and of PostgreSQL. They share the machine with the
load and the disk, so more processes are faster only if cores are free.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from bench import wire, worker_app
from bench.cluster import Database, running_database
from bench.figures import Figure, Floors, Size, format_clients
from bench.floors import READERS
from bench.load import Requests, run_fan_out
from bench.measures.fan_out import create_pause_job
from bench.rates import Measurable, measure_rate
from bench.server import KEY, ServerProcess, serving_processes

PROCESSES = (1, 2, 4)
CLIENTS = 16
WARM_UP_RUNS = 500
THROUGH_WORKERS = 200
FAILOVERS = 5
AIM_CPU_US = 3_000
AIM_FAILOVER_SECONDS = 10
_LONGEST_WAIT = 60.0
_POLL_SECONDS = 0.02
_STREAMED_TEXT = {
    "workflowId": "conformance-stream-text",
    "configurable": {
        "mockProvider": {
            "id": "stream-text",
            "config": {"tokens": ["word "] * 2_000, "delayMsPerToken": 50},
        }
    },
}


class ProcessGroup:
    """The processes of a host and their database, measured together."""

    def __init__(self, served: Sequence[ServerProcess], database: Database) -> None:
        self._parts: tuple[Measurable, ...] = (*served, database)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all these processes."""
        return sum(part.cpu_seconds() for part in self._parts)


def measure_postgres(size: Size, floors: Floors) -> list[Figure]:
    """Measure each number of processes on its own database."""
    figures = [_runs(count, size) for count in PROCESSES]
    figures.append(_through_workers())
    figures += _fan_out(size, floors)
    figures.append(_failover())
    return figures


def _runs(count: int, size: Size) -> Figure:
    with running_database() as database, serving_processes(database.url, "serve", count) as served:
        together = ProcessGroup(served, database)
        ports = [each.port for each in served]
        jobs = [
            Requests(
                port=ports[0],
                more_ports=ports[1:],
                clients=CLIENTS * count,
                requests=[wire.create_run("bench-noop")],
                **limit,
            )
            for limit in ({"count": WARM_UP_RUNS * count}, {"seconds": size.seconds})
        ]
        measure_rate(together, jobs[0])
        rate = measure_rate(together, jobs[1])
    named = "1 process" if count == 1 else f"{count} processes"
    return Figure(
        measure="postgres",
        name=f"created and completed, {named}, {format_clients(CLIENTS * count)}",
        value=rate.per_second,
        unit="runs/s",
        cpu_us=rate.cpu_us,
        load_us=rate.load_us,
        p50_ms=rate.responses.p50_ms,
        p99_ms=rate.responses.p99_ms,
        aim=f"at most {AIM_CPU_US / 1000:.0f} ms CPU in all",
        met=rate.cpu_us <= AIM_CPU_US,
    )


def _through_workers() -> Figure:
    """Measure runs that one process accepts and a worker executes through the queue."""
    app = ("--app", str(Path(worker_app.__file__)))
    with (
        running_database() as database,
        serving_processes(database.url, "serve", 1, "--no-worker", *app) as [api],
        serving_processes(database.url, "worker", 2, *app) as workers,
    ):
        together = ProcessGroup((api, *workers), database)
        for _ in range(20):
            _run_through_worker(api)
        before, began = together.cpu_seconds(), time.perf_counter()
        done = [_run_through_worker(api) for _ in range(THROUGH_WORKERS)]
        seconds, cpu = time.perf_counter() - began, together.cpu_seconds() - before
        _require_workers({process for _, process in done}, workers)
    taken = sorted(each for each, _ in done)
    return Figure(
        measure="postgres",
        name="accepted by one process, async node executed by one of 2 workers, 1 client",
        value=THROUGH_WORKERS / seconds,
        unit="runs/s",
        cpu_us=1e6 * cpu / THROUGH_WORKERS,
        p50_ms=1000 * taken[len(taken) // 2],
        p99_ms=1000 * taken[int(len(taken) * 0.99)],
    )


def _run_through_worker(api: ServerProcess) -> tuple[float, int]:
    """Return the seconds from the request to the end of the run's stream, and the process id."""
    began = time.perf_counter()
    run = wire.call(api.port, "POST", "/v1/runs", {"workflowId": worker_app.flow.id})
    connection = HTTPConnection("127.0.0.1", api.port, timeout=_LONGEST_WAIT)
    connection.request("GET", str(run["eventsUrl"]), headers={"Authorization": f"Bearer {KEY}"})
    completed = False
    with connection.getresponse() as stream:
        for line in stream:
            completed = completed or line.startswith(b"event: run.completed")
            if completed and line.startswith(b"data: "):
                seconds = time.perf_counter() - began
                event = msgspec.json.decode(line.removeprefix(b"data: "))
                connection.close()
                return seconds, int(event["payload"]["outputs"]["process"])
    raise RuntimeError(f"the run {run['runId']} did not complete")


def _require_workers(processes: set[int], workers: Sequence[ServerProcess]) -> None:
    """Raise an error if a process that is no worker executed a node."""
    others = processes - {worker.pid for worker in workers}
    if others:
        raise RuntimeError(f"the processes {sorted(others)} executed nodes and are no workers")


def _fan_out(size: Size, floors: Floors) -> list[Figure]:
    """Measure a run that one process changes, with readers at another process."""
    with (
        running_database() as database,
        serving_processes(database.url, "serve", 2) as [trigger, read],
    ):
        together = ProcessGroup((trigger, read), database)
        before = together.cpu_seconds()
        arrivals = run_fan_out(create_pause_job(read, size, trigger=trigger))
        cpu = together.cpu_seconds() - before
    return [
        Figure(
            measure="postgres",
            name=f"request at one process to last of {READERS} readers at another, {how}",
            value=choose(arrivals.last_ms),
            unit="ms",
            cpu_us=1e6 * cpu / (size.fan_outs * READERS),
            floor=floors.fan_out_ms,
        )
        for how, choose in (("median", statistics.median), ("slowest", max))
    ]


def _failover() -> Figure:
    """Measure the time from `kill -9` of the active worker to the next event of its run."""
    taken: list[float] = []
    with (
        running_database() as database,
        serving_processes(database.url, "serve", 1, "--no-worker", "--conformance") as [api],
    ):
        for _ in range(FAILOVERS):
            with serving_processes(database.url, "worker", 2, "--conformance") as workers:
                taken.append(_seconds_to_take_over(api, workers, database))
    return Figure(
        measure="postgres",
        name=f"kill -9 of a worker to its run's next event, slowest of {FAILOVERS}",
        value=max(taken),
        unit="s",
        p50_ms=1000 * statistics.median(taken),
        aim=f"under {AIM_FAILOVER_SECONDS} s",
        met=max(taken) < AIM_FAILOVER_SECONDS,
    )


def _seconds_to_take_over(
    api: ServerProcess, workers: Sequence[ServerProcess], database: Database
) -> float:
    run = wire.call(api.port, "POST", "/v1/runs", _STREAMED_TEXT)
    events = f"{run['statusUrl']}/events/poll?lastSequence="
    last_event = _next_event(api, events, 5, time.perf_counter())[0]
    holder = str(database.value(f"SELECT holder FROM runs WHERE run_id = '{run['runId']}'"))
    [holding] = [worker for worker in workers if str(worker.pid) in holder.split("-")]
    holding.kill()
    died = time.perf_counter()
    # Events that were committed before the kill do not count.
    committed = wire.call(api.port, "GET", f"{events}{last_event}")["events"]
    last = committed[-1]["sequence"] if committed else last_event
    seconds = _next_event(api, events, last, died)[1]
    wire.call(api.port, "POST", f"{run['statusUrl']}/cancel", {})
    return seconds


def _next_event(api: ServerProcess, events: str, after: int, began: float) -> tuple[int, float]:
    """Wait for events after a sequence; return the last sequence and the seconds until then."""
    while time.perf_counter() - began < _LONGEST_WAIT:
        found = wire.call(api.port, "GET", f"{events}{after}")["events"]
        if found:
            return int(found[-1]["sequence"]), time.perf_counter() - began
        time.sleep(_POLL_SECONDS)
    raise RuntimeError("no process took over the run")
