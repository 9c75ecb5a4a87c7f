"""What it costs a run to be watched: unwatched, with a reader of its stream, with its page open.

One run of many steps is made three ways in turn, several times over. The time of a run is that of
its own log, from the first event to the last. CPU is that of the host, from the first step to the
end. A reader of the stream and a reader of the live page are processes of their own, so that their
own work is not the host's. With a browser at hand its tab is measured too; the tab draws what it
gets, so on a machine with few cores it takes time from the host.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import httpx
from playwright.sync_api import BrowserContext
from tests.console.browser import chromium, launched, sign_in

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.server import KEY, Served, serving_host
from bench.workflows import steps

STEPS = 990
MOST_PER_CENT = 5
_TOKEN = re.compile('name="csrf" value="([0-9a-f]+)"')
# Reads a stream to its end and prints how many bytes came.
_READER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stream:
    stream.sendall(sys.argv[2].encode())
    total = 0
    while piece := stream.recv(1 << 20):
        total += len(piece)
print(total)
"""


class Watched(NamedTuple):
    """One run: its seconds, the host's CPU seconds, and the bytes that its watcher got."""

    seconds: float
    cpu: float
    received: int


def measure_watching(size: Size, floors: Floors) -> list[Figure]:
    """Compare a watched run with one that is not watched."""
    definition = steps("bench-watched", STEPS)
    with serving_host() as served:
        wire.call(served.port, "POST", "/v1/workflows", definition)
        cookie = _signed_in(served)
        found: dict[str, list[Watched]] = {}
        for _ in range(size.windows):
            for name, head in _ways(cookie).items():
                run = _started(served)
                request = head.format(run=run) if head else ""
                found.setdefault(name, []).append(_watched(served, run, request))
        with _tab(served) as context:
            for _ in range(size.windows if context is not None else 0):
                run = _started(served)
                found.setdefault("with a browser tab", []).append(_in_a_tab(served, run, context))
    plain = found["unwatched"]
    return [figure for name, runs in found.items() for figure in _figures(name, runs, plain)]


def _ways(cookie: str) -> dict[str, str]:
    """The request of each watcher, without the run; nothing for none."""
    close = "Host: 127.0.0.1\r\nConnection: close\r\n"
    stream = f"GET /v1/runs/{{run}}/events HTTP/1.1\r\n{close}Authorization: Bearer {KEY}\r\n\r\n"
    page = (
        f"GET /runs/{{run}}/live?after=0 HTTP/1.1\r\n{close}Cookie: {cookie}\r\n"
        "Sec-Fetch-Site: same-origin\r\n\r\n"
    )
    return {"unwatched": "", "with a reader of its stream": stream, "with its live page": page}


def _started(served: Served) -> str:
    run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": "bench-watched"})
    return str(run["runId"])


def _watched(served: Served, run: str, request: str) -> Watched:
    reader = None
    if request:
        command = [sys.executable, "-c", _READER, str(served.port), request]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    before = served.cpu_seconds()
    _ended(served, run)
    cpu = served.cpu_seconds() - before
    received = 0 if reader is None else int(reader.communicate()[0])
    return Watched(_seconds(served, run), cpu, received)


def _ended(served: Served, run: str) -> None:
    """Wait for the end of a run without being another reader of its log."""
    while wire.call(served.port, "GET", f"/v1/runs/{run}")["status"] != "completed":
        time.sleep(0.25)


def _seconds(served: Served, run: str) -> float:
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json"}
    path = f"http://127.0.0.1:{served.port}/v1/runs/{run}/events"
    events = httpx.get(path, headers=headers, timeout=60, trust_env=False).json()["events"]
    first, last = (datetime.fromisoformat(events[place]["timestamp"]) for place in (3, -1))
    return (last - first).total_seconds()


@contextmanager
def _tab(served: Served) -> Iterator[BrowserContext | None]:
    path = chromium()
    if path is None:
        print("  no chromium: no browser tab", file=sys.stderr)
        yield None
        return
    with launched(path) as browser:
        context = browser.new_context(base_url=f"http://127.0.0.1:{served.port}")
        page = context.new_page()
        page.goto("/keys")
        sign_in(page, KEY)
        page.close()
        yield context


def _in_a_tab(served: Served, run: str, context: BrowserContext | None) -> Watched:
    assert context is not None
    page = context.new_page()
    page.goto(f"/runs/{run}")
    before = served.cpu_seconds()
    _ended(served, run)
    cpu = served.cpu_seconds() - before
    page.close()
    return Watched(_seconds(served, run), cpu, 0)


def _signed_in(served: Served) -> str:
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as http:
        [token] = _TOKEN.findall(http.get("/sign-in").text)
        http.post("/sign-in", data={"csrf": token, "key": KEY, "next": "/"})
        return "; ".join(f"{name}={value}" for name, value in http.cookies.items())


def _figures(name: str, runs: list[Watched], plain: list[Watched]) -> Iterator[Figure]:
    seconds = statistics.median(run.seconds for run in runs)
    cpu = statistics.median(run.cpu for run in runs)
    is_plain = runs is plain
    longer = 100 * (seconds / statistics.median(run.seconds for run in plain) - 1)
    yield Figure(
        measure="watching",
        name=f"a run of {STEPS} steps, {name}",
        value=seconds,
        unit="s",
        cpu_us=1e6 * cpu / STEPS,
        aim="" if is_plain else f"at most {MOST_PER_CENT} % longer: {longer:+.1f} %",
        met=None if is_plain else longer <= MOST_PER_CENT,
    )
    if received := statistics.median(run.received for run in runs):
        yield Figure(
            measure="watching",
            name=f"sent to the watcher, {name}",
            value=received / 1024,
            unit="KiB",
        )
