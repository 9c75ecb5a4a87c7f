"""The measured processes: a host or a bare server, on the local disk and the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import psutil  # type: ignore[import-untyped]  # the package carries no types

from bench.workflows import WORKFLOWS
from wopr.store.port import Store
from wopr.store.sqlite import SqliteStore

KEY = "test_bench_0123456789"
TENANT = "bench"
OTHER_KEY = "test_bench_other_0123456789"
STOP_SECONDS = 20
POLL_SECONDS = 0.05
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
_SERVE = "from wopr.cli.main import main; main()"


Fill: TypeAlias = Callable[[Store], Awaitable[None]]


class ServerProcess:
    """A server process: its port, its CPU time so far, and the database of a host."""

    database: Path

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port = port
        self.pid = process.pid
        self._process = psutil.Process(process.pid)

    def cpu_seconds(self) -> float:
        """Return user and system time of all its threads since its start."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def rss_bytes(self) -> int:
        """Return the current resident memory."""
        return int(self._process.memory_info().rss)

    def wait_for_projections(self) -> None:
        """Wait until the host has processed its queue of runs for the fleet."""
        address = f"{self.database.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            while connection.execute("SELECT EXISTS (SELECT 1 FROM projections)").fetchone()[0]:
                time.sleep(POLL_SECONDS)


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a directory on the disk of the working directory, and delete it at the end."""
    directory = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def serving_host(*options: str, fill: Fill | None = None) -> Iterator[ServerProcess]:
    """Start a host with `wopr serve`, the benchmark's workflows and no rate limit.

    `fill` writes data to its store first.
    """
    with scratch() as directory:
        if fill is not None:
            (directory / "data").mkdir()
            asyncio.run(_fill(directory / "data" / "wopr.db", fill))
        environment, workflows = _prepare(directory)
        command = ("-c", _SERVE, "serve", "--port", "0", "--workflows", workflows, *options)
        with _process(command, environment) as served:
            served.database = directory / "data" / "wopr.db"
            yield served


@contextmanager
def serving_processes(
    url: str, kind: str, count: int, *options: str
) -> Iterator[list[ServerProcess]]:
    """Start `count` processes of a kind, `serve` or `worker`, that share the database at `url`."""
    with scratch() as directory, ExitStack() as started:
        environment, workflows = _prepare(directory)
        environment |= {"WOPR_HOST_KEY": base64.b64encode(b"b" * 32).decode(), "WOPR_DB": url}
        command = ("-c", _SERVE, kind, "--port", "0", "--workflows", workflows, *options)
        yield [started.enter_context(_process(command, environment)) for _ in range(count)]


def _prepare(directory: Path) -> tuple[dict[str, str], str]:
    """Write the workflows; return the environment of a host and the folder of its workflows."""
    workflows = directory / "workflows"
    workflows.mkdir()
    for definition in WORKFLOWS:
        (workflows / f"{definition['id']}.json").write_bytes(msgspec.json.encode(definition))
    environment = os.environ | {
        "WOPR_DATA_DIR": str(directory / "data"),
        "WOPR_API_KEYS": f"{KEY}:{TENANT}:admin,{OTHER_KEY}:other:admin",
        "WOPR_RATE_LIMIT": "0",
        "WOPR_INGEST_RATE_LIMIT": "0",
    }
    return environment, str(workflows)


async def _fill(path: Path, fill: Fill) -> None:
    store = await SqliteStore.open(str(path))
    try:
        await fill(store)
    finally:
        await store.close()


@contextmanager
def serving_echo() -> Iterator[ServerProcess]:
    """Start the bare server."""
    with _process(("-m", "bench.echo"), dict(os.environ)) as served:
        yield served


@contextmanager
def _process(arguments: Sequence[str], environment: dict[str, str]) -> Iterator[ServerProcess]:
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield ServerProcess(process, _port(process))
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _port(process: subprocess.Popen[str]) -> int:
    for line in process.stdout or ():
        found = _ADDRESS.search(line)
        if found is not None:
            return int(found.group(1))
    raise RuntimeError(f"the server exited with code {process.wait()} before it listened")
