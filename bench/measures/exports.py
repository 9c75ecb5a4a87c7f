"""An export of many runs: its speed, and the memory of the host meanwhile."""

from __future__ import annotations

import time
from http.client import HTTPConnection

from bench.figures import Figure, Floors, Size
from bench.filling import put_annotations, put_runs
from bench.server import KEY, ServerProcess, serving_host
from wopr.store.port import Store

FORMATS = ("jsonl", "csv", "parquet")
AIM_MIB = 200
PIECE = 1 << 16


def measure_exports(size: Size, floors: Floors) -> list[Figure]:
    """Export every run of a filled host, in each format."""
    now = int(time.time() * 1000)

    async def fill(store: Store) -> None:
        await put_runs(store, size.exported_runs, now)
        count = size.exported_runs // 10
        await put_annotations(store, count, runs=count, since=now - 1000, until=now)

    with serving_host(fill=fill) as served:
        # The annotations queue their runs for the fleet.
        served.wait_for_projections()
        return [_export(served, name, size.exported_runs) for name in FORMATS]


def _export(served: ServerProcess, format_name: str, runs: int) -> Figure:
    cpu, began = served.cpu_seconds(), time.perf_counter()
    most = _read(served, f"/v1/export/runs?format={format_name}")
    seconds, cpu = time.perf_counter() - began, served.cpu_seconds() - cpu
    return Figure(
        measure="exports",
        name=f"{runs:,} runs as {format_name}, at most {most / 2**20:.0f} MiB resident",
        value=runs / seconds,
        unit="runs/s",
        cpu_us=1e6 * cpu / runs,
        aim=f"under {AIM_MIB} MiB",
        met=most < AIM_MIB * 2**20,
    )


def _read(served: ServerProcess, path: str) -> int:
    """Read a response to its end; return the peak memory of the host meanwhile."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=120)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path} returned {response.status}: {response.read()[:300]!r}")
        most = 0
        while response.read(PIECE):
            most = max(most, served.rss_bytes())
        return most
    finally:
        connection.close()
