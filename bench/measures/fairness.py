"""One tenant has 10,000 runnable runs: how long the runs of another tenant wait."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

from bench.cluster import running_database
from bench.figures import Figure, Floors, Size
from bench.measures.timers import call, lateness_ms
from bench.server import OTHER_KEY, ServerProcess, serving_host, serving_processes

BACKLOG = 10_000
CLIENTS = 8
# Time to create the backlog before it is due.
AHEAD_MS = 60_000
# The runs of the other tenant: the wait of each, and the time between their starts.
DELAY_MS = 50
EVERY_SECONDS = 0.1
AIM_MS = 1000
_LONGEST_SECONDS = 120.0


def measure_fairness(size: Size, floors: Floors) -> list[Figure]:
    """Measure on SQLite, and with two processes on PostgreSQL."""
    with serving_host() as host:
        figures = _delays("SQLite", [host])
    with running_database() as database, serving_processes(database.url, "serve", 2) as served:
        figures += _delays("2 processes on PostgreSQL", served)
    return figures


def _delays(named: str, served: list[ServerProcess]) -> list[Figure]:
    due = time.time() * 1000 + AHEAD_MS
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = [pool.submit(_create, served[n % len(served)], due) for n in range(CLIENTS)]
    for share in shares:
        share.result()
    is_in_time = time.time() * 1000 < due
    time.sleep(max(0.0, due / 1000 - time.time()))
    runs, response_ms = _run_beside(served[0])
    connection = HTTPConnection("127.0.0.1", served[0].port, timeout=60)
    late = sorted(lateness_ms(connection, run_id, OTHER_KEY) for run_id in runs)
    note = "" if is_in_time else " (created too late)"
    return [
        Figure(
            measure="fairness",
            name=f"{what}, with {BACKLOG:,} due runs of another tenant, longest, {named}{note}",
            value=found[-1],
            unit="ms",
            p50_ms=found[len(found) // 2],
            p99_ms=found[int(len(found) * 0.99)],
            aim=f"at most {AIM_MS / 1000:.0f} s",
            met=found[-1] <= AIM_MS,
        )
        for what, found in (("request for a run", sorted(response_ms)), ("delay of a timer", late))
    ]


def _create(served: ServerProcess, due: float) -> None:
    """Start a share of the backlog: runs that are all due at the same time."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    for _ in range(BACKLOG // CLIENTS):
        inputs = {"delayMs": max(0, round(due - time.time() * 1000))}
        call(connection, "POST", "/v1/runs", {"workflowId": "bench-timer", "inputs": inputs})
    connection.close()


def _run_beside(served: ServerProcess) -> tuple[list[str], list[float]]:
    """Start runs of the other tenant until the backlog has ended; return ids and response times."""
    own = HTTPConnection("127.0.0.1", served.port, timeout=60)
    other = HTTPConnection("127.0.0.1", served.port, timeout=60)
    runs: list[str] = []
    response_ms: list[float] = []
    deadline = time.monotonic() + _LONGEST_SECONDS
    body = {"workflowId": "bench-timer", "inputs": {"delayMs": DELAY_MS}}
    while time.monotonic() < deadline:
        began = time.perf_counter()
        runs.append(call(own, "POST", "/v1/runs", body, OTHER_KEY)["runId"])
        response_ms.append(1000 * (time.perf_counter() - began))
        time.sleep(EVERY_SECONDS)
        if not call(other, "GET", "/v1/runs?status=running&limit=1")["items"]:
            break
    while call(own, "GET", "/v1/runs?status=running&limit=1", key=OTHER_KEY)["items"]:
        time.sleep(EVERY_SECONDS)
    return runs, response_ms
