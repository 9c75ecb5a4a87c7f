"""The effect of readers on a run: a reader of its stream, of its live page, or a browser tab.

Two runs with the same number of steps are measured: one at full speed, and one that takes about 20
seconds, as a run of agents does. Each is executed without a reader and with each kind of reader, in
several rounds. Each round begins with another kind. A run with a reader is compared with the run
without a reader of its round, and the figure is the median of the rounds.

The time of a run comes from its log, from the second step to the last event. The CPU of the host is
counted until the reader has the end of the run, so it includes the last drawing of a page. A reader
of a stream is a separate process. A browser tab shares the cores with the host, so the CPU of the
browser is a separate figure.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import httpx
import psutil  # type: ignore[import-untyped]  # the package carries no types
from playwright.sync_api import BrowserContext, expect
from tests.support.browser import chromium, launched, sign_in

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.server import KEY, ServerProcess, serving_host
from bench.workflows import steps

FAST, SLOW = "bench-watched", "bench-watched-slow"
STEPS = 990
MAX_PER_CENT = 5
# Milliseconds that every tenth step of the slow run waits, and the rounds of the slow run.
WAIT_MS = 200
SLOW_ROUNDS = 3
# Rounds of the fast run per window of other measures. The run takes less than a second.
ROUNDS = 3
NO_READER = "without a reader"
_TOKEN = re.compile('name="csrf" value="([0-9a-f]+)"')
# Reads a stream to its end and prints the number of bytes.
_READER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stream:
    stream.sendall(sys.argv[2].encode())
    total = 0
    while piece := stream.recv(1 << 20):
        total += len(piece)
print(total)
"""


class WatchedRun(NamedTuple):
    """One run: its seconds and events, CPU seconds of the host, bytes sent, CPU seconds of the browser."""

    seconds: float
    events: int
    cpu: float
    received: int = 0
    browser: float = 0.0


# Follows a run to its end with one kind of reader.
Follow = Callable[[ServerProcess, str], WatchedRun]


def measure_watching(size: Size, floors: Floors) -> list[Figure]:
    """Compare a run with each kind of reader with a run without a reader."""
    with serving_host() as served, _tab(served) as context:
        for definition in (steps(FAST, STEPS), steps(SLOW, STEPS, WAIT_MS)):
            wire.call(served.port, "POST", "/v1/workflows", definition)
        readers = _readers(_sign_in_cookie(served), context)
        # The first round warms up the host and the browser.
        _rounds(served, FAST, readers, 1)
        fast = _rounds(served, FAST, readers, ROUNDS * size.windows)
        slow = _rounds(served, SLOW, readers, SLOW_ROUNDS)
    return [*_figures("fast run", fast), *_figures("slow run", slow)]


def _rounds(
    served: ServerProcess, workflow: str, readers: dict[str, Follow], count: int
) -> dict[str, list[WatchedRun]]:
    """Execute the run with each kind of reader, `count` times."""
    names = list(readers)
    found: dict[str, list[WatchedRun]] = {name: [] for name in names}
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": workflow})
            found[name].append(readers[name](served, str(run["runId"])))
    return found


def _readers(cookie: str, context: BrowserContext | None) -> dict[str, Follow]:
    close = "Host: 127.0.0.1\r\nConnection: close\r\n"
    stream = f"GET /v1/runs/{{run}}/events HTTP/1.1\r\n{close}Authorization: Bearer {KEY}\r\n\r\n"
    page = (
        f"GET /runs/{{run}}/live?after=0 HTTP/1.1\r\n{close}Cookie: {cookie}\r\n"
        "Sec-Fetch-Site: same-origin\r\n\r\n"
    )
    readers: dict[str, Follow] = {
        NO_READER: _without_reader,
        "with a reader of its stream": lambda served, run: _read_stream(served, run, stream),
        "with a reader of its live page": lambda served, run: _read_stream(served, run, page),
    }
    if context is not None:
        readers["with a browser tab"] = lambda served, run: _open_in_tab(served, run, context)
    return readers


def _without_reader(served: ServerProcess, run: str) -> WatchedRun:
    before = served.cpu_seconds()
    _wait_for_end(served)
    cpu = served.cpu_seconds() - before
    return WatchedRun(*_duration_from_log(served, run), cpu)


def _read_stream(served: ServerProcess, run: str, request: str) -> WatchedRun:
    command = [sys.executable, "-c", _READER, str(served.port), request.format(run=run)]
    before = served.cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        _wait_for_end(served)
        received = int(reader.communicate()[0])
    cpu = served.cpu_seconds() - before
    return WatchedRun(*_duration_from_log(served, run), cpu, received)


def _open_in_tab(served: ServerProcess, run: str, context: BrowserContext) -> WatchedRun:
    page = context.new_page()
    page.goto(f"/runs/{run}")
    state = page.locator("[data-live-state]")
    expect(state).to_have_text("live")
    before, browser_before = served.cpu_seconds(), _browser_seconds()
    _wait_for_end(served)
    expect(state).to_have_text("ended")
    cpu, browser = served.cpu_seconds() - before, _browser_seconds() - browser_before
    page.close()
    return WatchedRun(*_duration_from_log(served, run), cpu, browser=browser)


def _wait_for_end(served: ServerProcess) -> None:
    """Wait until the newest run has ended. The list reads the row of the run and not its log."""
    while wire.call(served.port, "GET", "/v1/runs?limit=1")["items"][0]["status"] != "completed":
        time.sleep(0.25)


def _duration_from_log(served: ServerProcess, run: str) -> tuple[float, int]:
    """Return the seconds and the number of events of a run, from its log."""
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json"}
    path = f"http://127.0.0.1:{served.port}/v1/runs/{run}/events"
    events = httpx.get(path, headers=headers, timeout=60, trust_env=False).json()["events"]
    first, last = (datetime.fromisoformat(events[place]["timestamp"]) for place in (3, -1))
    return (last - first).total_seconds(), len(events)


def _browser_seconds() -> float:
    """Return the CPU seconds of all processes of the browser."""
    own = psutil.Process().children(recursive=True)
    times = [process.cpu_times() for process in own if "chrom" in process.name()]
    return float(sum(each.user + each.system for each in times))


@contextmanager
def _tab(served: ServerProcess) -> Iterator[BrowserContext | None]:
    path = chromium()
    if path is None:
        print(
            "  skipped the browser tab: there is no chromium; `make browser` installs it",
            file=sys.stderr,
        )
        yield None
        return
    with launched(path) as browser:
        context = browser.new_context(base_url=f"http://127.0.0.1:{served.port}")
        page = context.new_page()
        page.goto("/keys")
        sign_in(page, KEY)
        page.close()
        yield context


def _sign_in_cookie(served: ServerProcess) -> str:
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as http:
        [token] = _TOKEN.findall(http.get("/sign-in").text)
        http.post("/sign-in", data={"csrf": token, "key": KEY, "next": "/"})
        return "; ".join(f"{name}={value}" for name, value in http.cookies.items())


def _figures(run: str, found: dict[str, list[WatchedRun]]) -> Iterator[Figure]:
    for name, runs in found.items():
        yield from _figures_of(run, name, runs, found[NO_READER])


def _figures_of(
    kind: str, name: str, runs: list[WatchedRun], plain: list[WatchedRun]
) -> Iterator[Figure]:
    cpu = statistics.median(run.cpu for run in runs)
    is_plain = runs is plain
    longer = _median_excess([run.seconds for run in runs], [run.seconds for run in plain])
    yield Figure(
        measure="watching",
        name=f"{kind}, {runs[0].events:,} events, {name}",
        value=1000 * statistics.median(run.seconds for run in runs),
        unit="ms",
        cpu_us=1e6 * cpu / runs[0].events,
        aim="" if is_plain else f"at most {MAX_PER_CENT} % longer: {longer:+.1f} %",
        met=None if is_plain else longer <= MAX_PER_CENT,
    )
    if not is_plain:
        more = _median_excess([run.cpu for run in runs], [run.cpu for run in plain])
        yield _detail(f"{kind}, additional CPU of the host, {name}", more, "%")
    if received := statistics.median(run.received for run in runs):
        yield _detail(f"{kind}, bytes sent, {name}", received / 1024, "KiB")
    if browser := statistics.median(run.browser for run in runs):
        yield _detail(f"{kind}, CPU of the browser, {name}", 1000 * browser, "ms")


def _median_excess(with_reader: list[float], plain: list[float]) -> float:
    """Return the excess over the run without a reader of the same round, in per cent (median)."""
    pairs = zip(with_reader, plain, strict=True)
    return 100 * (statistics.median(one / other for one, other in pairs) - 1)


def _detail(name: str, value: float, unit: str) -> Figure:
    return Figure(measure="watching", name=name, value=value, unit=unit)
