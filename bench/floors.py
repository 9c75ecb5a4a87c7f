"""The floors: lower bounds of the cost of a request and an append on this machine."""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path

import msgspec

from bench import wire
from bench.echo import FRAME
from bench.figures import CLIENTS, Figure, Floor, Floors, Size, format_clients
from bench.load import FanOut, Requests, run_fan_out
from bench.rates import measure_rate
from bench.server import scratch, serving_echo, serving_host

READERS = 200
_MARK = FRAME.split(b"\n")[1]


def measure_floors(size: Size) -> Floors:
    """Measure every floor. Other figures are printed as ratios to them."""
    events = _events_of_a_run()
    seconds = size.seconds / 2
    with serving_echo() as served:
        echo = {
            clients: measure_rate(
                served,
                Requests(
                    port=served.port,
                    clients=clients,
                    requests=[wire.create_run("bench-noop")],
                    seconds=seconds,
                ),
            ).floor()
            for clients in CLIENTS
        }
    with scratch() as directory:
        append = {
            clients: _append_floor(directory / f"{clients}.db", events, clients, seconds)
            for clients in CLIENTS
        }
    return Floors(echo=echo, append=append, fan_out_ms=_fan_out_floor(size), events=events)


def _events_of_a_run() -> list[bytes]:
    """Return the events of one run of `bench-noop`, byte for byte as a host stored them."""
    with serving_host() as served:
        run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": "bench-noop"})
        page = wire.call(served.port, "GET", f"{run['eventsUrl']}/poll?lastSequence=-1")
    return [msgspec.json.encode(event) for event in page["events"]]


def _append_floor(path: Path, events: list[bytes], clients: int, seconds: float) -> Floor:
    """Insert the events of one run per client, commit, and repeat."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE log (body BLOB NOT NULL)")
    group = [(body,) for body in events] * clients
    began, cpu = time.perf_counter(), time.process_time()
    runs = 0
    while (spent := time.perf_counter() - began) < seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log (body) VALUES (?)", group)
        connection.execute("COMMIT")
        runs += clients
    cpu = time.process_time() - cpu
    connection.close()
    return Floor(rate=runs / spent, cpu_us=1e6 * cpu / runs)


def _fan_out_floor(size: Size) -> float:
    with serving_echo() as served:
        job = FanOut(
            port=served.port,
            readers=READERS,
            stream=wire.request("GET", "/fan"),
            opened=b": open",
            triggers=[wire.request("POST", "/fan", b'{"workflowId":"x"}')] * size.fan_outs,
            marks=[_MARK] * size.fan_outs,
        )
        return statistics.median(run_fan_out(job).last_ms)


def floor_figures(floors: Floors) -> list[Figure]:
    """Return the floors as the first rows of the table."""
    echo = [
        Figure(
            measure="floor",
            name=f"bare HTTP echo, {format_clients(clients)}",
            value=floor.rate,
            unit="requests/s",
            cpu_us=floor.cpu_us,
            load_us=floor.load_us,
        )
        for clients, floor in floors.echo.items()
    ]
    size = sum(map(len, floors.events))
    append = [
        Figure(
            measure="floor",
            name=f"bare append, {clients} x {len(floors.events)} events in a commit, {size} bytes a run",
            value=floor.rate,
            unit="runs/s",
            cpu_us=floor.cpu_us,
        )
        for clients, floor in floors.append.items()
    ]
    fan = Figure(
        measure="floor",
        name=f"bare fan-out to {READERS} readers, median",
        value=floors.fan_out_ms,
        unit="ms",
    )
    return [*echo, *append, fan]
