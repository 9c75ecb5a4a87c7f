"""What it costs a run to be watched: by a reader of its stream, of its live page, by a browser tab.

Two runs of as many steps are watched: one that goes as fast as the host can, and one that takes about
20 seconds, as a run of agents does. Each is made unwatched and watched in each way, one after the
other, in several rounds. Each round begins with another way. A watched run is compared with the
unwatched run of its round, and the figure is the median of the rounds.

The time of a run is that of its own log, from the second step to the last event. CPU of the host is
counted until the watcher has the end of the run, so the last drawing of a page is part of it. A
reader of a stream is a process of its own. A browser tab draws what it gets: on a machine with few
cores it takes time from the host, so the CPU of the browser is a figure of its own.
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
from tests.console.browser import chromium, launched, sign_in

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.server import KEY, Served, serving_host
from bench.workflows import steps

FAST, SLOW = "bench-watched", "bench-watched-slow"
STEPS = 990
MOST_PER_CENT = 5
# Milliseconds that every tenth step of the slow run waits, and its rounds.
WAIT_MS = 200
SLOW_ROUNDS = 3
# Rounds of the fast run for each of the windows of other measures: it takes less than a second.
ROUNDS = 3
UNWATCHED = "unwatched"
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
    """One run: its seconds and events, and what watching it took.

    That is CPU of the host, the bytes that a reader got, and CPU of the browser.
    """

    seconds: float
    events: int
    cpu: float
    received: int = 0
    browser: float = 0.0


# Watches a run to its end, and returns what that took.
Way = Callable[[Served, str], Watched]


def measure_watching(size: Size, floors: Floors) -> list[Figure]:
    """Compare a watched run with one that is not watched."""
    with serving_host() as served, _tab(served) as context:
        for definition in (steps(FAST, STEPS), steps(SLOW, STEPS, WAIT_MS)):
            wire.call(served.port, "POST", "/v1/workflows", definition)
        ways = _ways(_signed_in(served), context)
        # The first round warms up the host and the browser.
        _rounds(served, FAST, ways, 1)
        fast = _rounds(served, FAST, ways, ROUNDS * size.windows)
        slow = _rounds(served, SLOW, ways, SLOW_ROUNDS)
    return [*_figures("a run", fast), *_figures("a slow run", slow)]


def _rounds(
    served: Served, workflow: str, ways: dict[str, Way], count: int
) -> dict[str, list[Watched]]:
    """Make the run in every way, `count` times."""
    names = list(ways)
    found: dict[str, list[Watched]] = {name: [] for name in names}
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": workflow})
            found[name].append(ways[name](served, str(run["runId"])))
    return found


def _ways(cookie: str, context: BrowserContext | None) -> dict[str, Way]:
    close = "Host: 127.0.0.1\r\nConnection: close\r\n"
    stream = f"GET /v1/runs/{{run}}/events HTTP/1.1\r\n{close}Authorization: Bearer {KEY}\r\n\r\n"
    page = (
        f"GET /runs/{{run}}/live?after=0 HTTP/1.1\r\n{close}Cookie: {cookie}\r\n"
        "Sec-Fetch-Site: same-origin\r\n\r\n"
    )
    ways: dict[str, Way] = {
        UNWATCHED: _unwatched,
        "with a reader of its stream": lambda served, run: _read(served, run, stream),
        "with a reader of its live page": lambda served, run: _read(served, run, page),
    }
    if context is not None:
        ways["with a browser tab"] = lambda served, run: _seen(served, run, context)
    return ways


def _unwatched(served: Served, run: str) -> Watched:
    before = served.cpu_seconds()
    _wait_for_end(served)
    cpu = served.cpu_seconds() - before
    return Watched(*_by_its_log(served, run), cpu)


def _read(served: Served, run: str, request: str) -> Watched:
    command = [sys.executable, "-c", _READER, str(served.port), request.format(run=run)]
    before = served.cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        _wait_for_end(served)
        received = int(reader.communicate()[0])
    cpu = served.cpu_seconds() - before
    return Watched(*_by_its_log(served, run), cpu, received)


def _seen(served: Served, run: str, context: BrowserContext) -> Watched:
    page = context.new_page()
    page.goto(f"/runs/{run}")
    state = page.locator("[data-live-state]")
    expect(state).to_have_text("live")
    before, browser_before = served.cpu_seconds(), _browser_seconds()
    _wait_for_end(served)
    expect(state).to_have_text("ended")
    cpu, browser = served.cpu_seconds() - before, _browser_seconds() - browser_before
    page.close()
    return Watched(*_by_its_log(served, run), cpu, browser=browser)


def _wait_for_end(served: Served) -> None:
    """Wait until the newest run has ended. The list reads its row and not its log."""
    while wire.call(served.port, "GET", "/v1/runs?limit=1")["items"][0]["status"] != "completed":
        time.sleep(0.25)


def _by_its_log(served: Served, run: str) -> tuple[float, int]:
    """The seconds and the events of a run, by its log."""
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json"}
    path = f"http://127.0.0.1:{served.port}/v1/runs/{run}/events"
    events = httpx.get(path, headers=headers, timeout=60, trust_env=False).json()["events"]
    first, last = (datetime.fromisoformat(events[place]["timestamp"]) for place in (3, -1))
    return (last - first).total_seconds(), len(events)


def _browser_seconds() -> float:
    """CPU seconds of the browser that this process started, in all its processes."""
    own = psutil.Process().children(recursive=True)
    times = [process.cpu_times() for process in own if "chrom" in process.name()]
    return float(sum(each.user + each.system for each in times))


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


def _signed_in(served: Served) -> str:
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as http:
        [token] = _TOKEN.findall(http.get("/sign-in").text)
        http.post("/sign-in", data={"csrf": token, "key": KEY, "next": "/"})
        return "; ".join(f"{name}={value}" for name, value in http.cookies.items())


def _figures(run: str, found: dict[str, list[Watched]]) -> Iterator[Figure]:
    for way, runs in found.items():
        yield from _figures_of(run, way, runs, found[UNWATCHED])


def _figures_of(
    kind: str, name: str, runs: list[Watched], plain: list[Watched]
) -> Iterator[Figure]:
    cpu = statistics.median(run.cpu for run in runs)
    is_plain = runs is plain
    longer = _more([run.seconds for run in runs], [run.seconds for run in plain])
    yield Figure(
        measure="watching",
        name=f"{kind}, {runs[0].events:,} events, {name}",
        value=1000 * statistics.median(run.seconds for run in runs),
        unit="ms",
        cpu_us=1e6 * cpu / runs[0].events,
        aim="" if is_plain else f"at most {MOST_PER_CENT} % longer: {longer:+.1f} %",
        met=None if is_plain else longer <= MOST_PER_CENT,
    )
    if not is_plain:
        more = _more([run.cpu for run in runs], [run.cpu for run in plain])
        yield _beside(f"{kind}: CPU of the host beyond an unwatched one, {name}", more, "%")
    if received := statistics.median(run.received for run in runs):
        yield _beside(f"{kind}: sent to the watcher, {name}", received / 1024, "KiB")
    if browser := statistics.median(run.browser for run in runs):
        yield _beside(f"{kind}: CPU of the browser, {name}", 1000 * browser, "ms")


def _more(watched: list[float], plain: list[float]) -> float:
    """By how many per cent a watched run exceeds the unwatched one of its round, at the median."""
    pairs = zip(watched, plain, strict=True)
    return 100 * (statistics.median(seen / unseen for seen, unseen in pairs) - 1)


def _beside(name: str, value: float, unit: str) -> Figure:
    return Figure(measure="watching", name=name, value=value, unit=unit)
