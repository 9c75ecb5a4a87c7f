"""Many timers that are due within a few seconds: how late each fires."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from typing import Any

from bench.cluster import running_database
from bench.figures import Figure, Floors, Size
from bench.server import KEY, ServerProcess, serving_host, serving_processes
from wopr.protocol.documents import to_millis

TIMERS = 3000
WINDOW_MS = 3000
# Time to create all timers before the first is due.
AHEAD_MS = 90_000
AIM_P99_MS = 1000
_LONGEST_WAIT = 180.0
_PAGE = 200


def measure_timers(size: Size, floors: Floors) -> list[Figure]:
    """Measure on SQLite, and with two processes on PostgreSQL."""
    with serving_host() as host:
        figures = [_lateness("SQLite", [host])]
    with running_database() as database, serving_processes(database.url, "serve", 2) as served:
        figures.append(_lateness("2 processes on PostgreSQL", served))
    return figures


def _lateness(named: str, served: list[ServerProcess]) -> Figure:
    connections = [HTTPConnection("127.0.0.1", each.port, timeout=60) for each in served]
    first_due = time.time() * 1000 + AHEAD_MS
    for number in range(TIMERS):
        due = first_due + number * WINDOW_MS / TIMERS
        inputs = {"delayMs": round(due - time.time() * 1000)}
        body = {"workflowId": "bench-timer", "inputs": inputs}
        call(connections[number % len(connections)], "POST", "/v1/runs", body)
    is_in_time = time.time() * 1000 < first_due
    before = sum(each.cpu_seconds() for each in served)
    _wait_until_fired(connections[0])
    cpu = sum(each.cpu_seconds() for each in served) - before
    late = sorted(_all_lateness_ms(connections[0]))
    p99 = late[int(len(late) * 0.99)]
    return Figure(
        measure="timers",
        name=f"delay of {TIMERS:,} timers due within {WINDOW_MS / 1000:.0f} s, {named}"
        + ("" if is_in_time else " (created too late)"),
        value=late[len(late) // 2],
        unit="ms",
        cpu_us=1e6 * cpu / TIMERS,
        p50_ms=late[len(late) // 2],
        p99_ms=p99,
        aim=f"p99 under {AIM_P99_MS / 1000:.0f} s",
        met=p99 < AIM_P99_MS,
    )


def _wait_until_fired(connection: HTTPConnection) -> None:
    deadline = time.monotonic() + _LONGEST_WAIT
    while call(connection, "GET", "/v1/runs?status=running&limit=1")["items"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all timers fired within {_LONGEST_WAIT:.0f} s")
        time.sleep(0.5)


def _all_lateness_ms(connection: HTTPConnection) -> list[float]:
    """Return how many milliseconds after its delay each run ended."""
    late: list[float] = []
    path = f"/v1/runs?workflowId=bench-timer&limit={_PAGE}"
    page = call(connection, "GET", path)
    while True:
        late += [lateness_ms(connection, item["runId"]) for item in page["items"]]
        if "nextCursor" not in page:
            return late
        page = call(connection, "GET", f"{path}&cursor={page['nextCursor']}")


def lateness_ms(connection: HTTPConnection, run_id: str, key: str = KEY) -> float:
    """Return how many milliseconds after its delay a run ended."""
    run: Any = call(connection, "GET", f"/v1/runs/{run_id}", key=key)
    node = run["nodeStates"]["sleep"]
    return float(
        to_millis(node["completedAt"]) - to_millis(node["startedAt"]) - run["inputs"]["delayMs"]
    )


def call(
    connection: HTTPConnection, method: str, path: str, body: Any = None, key: str = KEY
) -> Any:
    """Send a request on a keep-alive connection and return the decoded response."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    with connection.getresponse() as response:
        return json.loads(response.read())
