"""The page of a run in a real browser: first paint, bytes loaded, and many live readers.

The browser reports the first paint, from the start of the navigation, with styles and scripts in
its cache. Readers of a live page get its parts after the server has waited for more events and has
rendered them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page
from tests.support.browser import chromium, launched, sign_in

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.floors import READERS
from bench.load import FanOut, run_fan_out
from bench.measures.forks import wait_for_end
from bench.server import KEY, ServerProcess, serving_host
from bench.workflows import agent
from wopr.console.runs.live import BATCH_SECONDS

LENGTHS = (50, 5_000)
# The events of an agent's run without tool calls and their returns.
OTHERS = 6
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_BYTES = """['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))
  .reduce((sum, entry) => sum + entry.transferSize, 0)"""


def measure_console(size: Size, floors: Floors) -> list[Figure]:
    """Measure a short run, a long run, and a run with two hundred live readers."""
    path = chromium()
    if path is None:
        print("  skipped: there is no chromium; `make browser` installs it", file=sys.stderr)
        return []
    with serving_host("--conformance") as served, launched(path) as browser:
        figures = [
            figure for length in LENGTHS for figure in _page_figures(browser, served, size, length)
        ]
        return [*figures, *_live_page_figures(browser, served, size, floors)]


def _page_figures(
    browser: Browser, served: ServerProcess, size: Size, length: int
) -> Iterator[Figure]:
    definition = agent(f"conformance-bench-{length}", (length - OTHERS) // 2)
    wire.call(served.port, "POST", "/v1/workflows", definition)
    run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": definition["id"]})
    wait_for_end(served, run["runId"])
    path = f"/runs/{run['runId']}"
    with _signed_in_context(browser, served) as context:
        page = context.new_page()
        page.goto(path)
        paints = [_paint(page, path) for _ in range(_round_count(size))]
        warm = int(page.evaluate(_BYTES))
        tools = context.new_cdp_session(page)
        tools.send("Network.enable")
        tools.send("Network.setCacheDisabled", {"cacheDisabled": True})
        page.goto(path)
        cold = int(page.evaluate(_BYTES))
    yield _figure(f"first contentful paint, {length:,} events", statistics.median(paints), "ms")
    yield _figure(f"bytes of the first visit, {length:,} events", cold / 1024, "KiB")
    yield _figure(f"bytes of a later visit, {length:,} events", warm / 1024, "KiB")


def _live_page_figures(
    browser: Browser, served: ServerProcess, size: Size, floors: Floors
) -> Iterator[Figure]:
    run = wire.call(served.port, "POST", "/v1/runs", {"workflowId": "bench-wait"})
    with _signed_in_context(browser, served) as context:
        cookie = "; ".join(f"{each['name']}={each['value']}" for each in context.cookies())
        before = served.cpu_seconds()
        arrivals = run_fan_out(_job(served, size, run["runId"], cookie))
        cpu = served.cpu_seconds() - before
    waits = 1000 * BATCH_SECONDS
    yield Figure(
        measure="console",
        name=f"request to last of {READERS} live pages, median, {waits:.0f} ms of it batching",
        value=statistics.median(arrivals.last_ms),
        unit="ms",
        cpu_us=1e6 * cpu / (size.fan_outs * READERS),
        load_us=1e6 * arrivals.cpu_seconds / (size.fan_outs * READERS),
        floor=floors.fan_out_ms,
    )


def _job(served: ServerProcess, size: Size, run_id: str, cookie: str) -> FanOut:
    path = f"/v1/runs/{run_id}"
    stream = (
        f"GET /runs/{run_id}/live HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n"
        "Sec-Fetch-Site: same-origin\r\n\r\n"
    )
    rounds = size.fan_outs // 2
    pause = wire.request("POST", f"{path}:pause", b'{"drainPolicy":"immediate"}')
    resume = wire.request("POST", f"{path}:resume", b"{}")
    return FanOut(
        port=served.port,
        readers=READERS,
        stream=stream.encode(),
        opened=b"event: rows",
        triggers=[pause, resume] * rounds,
        # The row of the event, which the page adds to the end of its list.
        marks=[b">run.paused<", b">run.resumed<"] * rounds,
    )


@contextmanager
def _signed_in_context(browser: Browser, served: ServerProcess) -> Iterator[BrowserContext]:
    """Open a signed-in window. Its cache contains only the sign-in page."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{served.port}")
    page = context.new_page()
    page.goto("/keys")
    sign_in(page, KEY)
    page.close()
    yield context
    context.close()


def _paint(page: Page, path: str) -> float:
    page.goto(path)
    # Evaluated through the protocol of the browser, because the page's policy forbids scripts.
    while not (painted := page.evaluate(_PAINT)):
        page.wait_for_timeout(5)
    return float(painted)


def _round_count(size: Size) -> int:
    return max(size.windows, 3)


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(measure="console", name=name, value=value, unit=unit)
