"""A run that repeatedly kills or freezes the process is quarantined."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import Database
from tests.fault.checker import Stored
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME, GLOBEX, VIEWER

pytestmark = pytest.mark.timeout(300)

APP = """
import os
import signal
import time

import anyio

from wopr import NodeContext, node

HARMLESS = {harmless!r}


@node("bad.kill")
async def kill(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    await anyio.sleep(0.2)
    if not os.path.exists(HARMLESS):
        os.kill(os.getpid(), signal.SIGKILL)
    return {{}}


@node("bad.late")
async def late(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    await anyio.sleep(1.6)
    os.kill(os.getpid(), signal.SIGKILL)
    return {{}}


@node("bad.freeze")
async def freeze(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    while not os.path.exists(HARMLESS):
        time.sleep(0.05)
    return {{}}


@node("good.slow")
async def slow(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    await anyio.sleep(0.8)
    return {{}}


@node("good.long")
async def long(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    await anyio.sleep(4)
    return {{}}
"""
KILL, LATE, FREEZE, GOOD, LONG = "kills", "late", "freezes", "good", "long"
TYPES = {
    KILL: "bad.kill",
    LATE: "bad.late",
    FREEZE: "bad.freeze",
    GOOD: "good.slow",
    LONG: "good.long",
}
# A process that dies with a run waits before it recovers the run again, and then dies once more.
MAX_DEATHS = 6
# The watchdog names the run, so no other run is suspected.
MAX_FREEZES = 2


@pytest.fixture
def harmless(tmp_path: Path) -> Path:
    """Return a file; once it exists, the bad nodes do nothing."""
    return tmp_path / "harmless"


@pytest.fixture
def host(
    tmp_path: Path, harmless: Path, new_database: Callable[[], Database]
) -> Iterator[FragileHost]:
    app = tmp_path / "app.py"
    app.write_text(APP.format(harmless=str(harmless)))
    with new_database() as variables:
        made = FragileHost(tmp_path / "host", ("--app", str(app)), variables)
        made.start()
        for name, type_id in TYPES.items():
            made.wire.register(workflow([node("only", type_id)], id=name))
        yield made
        if made.process is not None:
            made.kill()


def start_bad_run(wire: Wire, workflow_id: str) -> None:
    # The process may end before it responds.
    with suppress(httpx.HTTPError):
        wire.post("/v1/runs", {"workflowId": workflow_id})


def run_of(wire: Wire, workflow_id: str) -> str:
    [run] = wire.document("/v1/runs", params={"workflowId": workflow_id})["items"]
    return str(run["runId"])


def kill_until_quarantined(host: FragileHost) -> tuple[str, str]:
    """Let a run kill the process, and twice the process that recovers it."""
    good = host.wire.create(GOOD)
    start_bad_run(host.wire, KILL)
    host.wait_for_exit()
    for _ in range(2):
        host.launch()
        assert host.wait_for_exit() == -9
    host.start()
    bad = run_of(host.wire, KILL)
    eventually(lambda: "quarantine" in host.wire.snapshot(bad))
    return bad, good


def test_a_run_that_kills_the_process_repeatedly_is_quarantined_and_others_complete(
    host: FragileHost,
) -> None:
    bad, good = kill_until_quarantined(host)
    wire = host.wire

    assert wire.finished(good)["status"] == "completed"
    shown = wire.snapshot(bad)
    assert shown["status"] == "running"
    assert shown["quarantine"]["crashes"] >= 2
    assert "quarantine" not in wire.snapshot(good)
    [listed] = wire.document("/v1/runs", params={"workflowId": KILL})["items"]
    assert listed["quarantine"] == shown["quarantine"]
    assert wire.types(bad)[-1] == "node.started"
    assert wire.post(f"/v1/runs/{bad}:pause").status_code == 409
    check_lists(host, bad, good)

    host.restart()

    assert "quarantine" in host.wire.snapshot(bad)
    assert host.wire.post(f"/v1/runs/{bad}/cancel").status_code == 200
    assert host.wire.finished(bad)["status"] == "cancelled"
    assert "quarantine" not in host.wire.snapshot(bad)
    assert quarantined(host.wire, "true") == []
    host.check()


def check_lists(host: FragileHost, bad: str, good: str) -> None:
    """Check that only the tenant finds the run: over HTTP, on the command line, in the console."""
    assert quarantined(host.wire, "true") == [bad]
    assert quarantined(host.wire, "false") == [good]
    refused = host.wire.get("/v1/runs", params={"quarantined": "yes"})
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "quarantined")
    with Wire(host.url, GLOBEX) as globex:
        assert quarantined(globex, "true") == []
    reach = ("--url", host.url, "--api-key", ACME)
    shown = host.command("runs", "list", "--quarantined", *reach)
    others = host.command("runs", "list", "--not-quarantined", *reach)
    assert (bad in shown, good in shown) == (True, False)
    assert (bad in others, good in others) == (False, True)
    with Person(host.url) as person:
        person.sign_in(ACME)
        page = person.page("/runs?status=in+quarantine")
        assert (f"/runs/{bad}" in page.links, f"/runs/{good}" in page.links) == (True, False)
        assert "in quarantine" in page.text


def test_a_run_that_kills_the_process_late_is_distinguished_from_concurrent_runs(
    host: FragileHost,
) -> None:
    innocent = [host.wire.create(LONG) for _ in range(2)]
    start_bad_run(host.wire, LATE)
    host.wait_for_exit()
    deaths = 0
    while not is_quarantined_or_dead(host):
        deaths += 1
        assert deaths < MAX_DEATHS
        assert host.wait_for_exit() == -9

    assert quarantined(host.wire, "true") == [run_of(host.wire, LATE)]
    for run_id in innocent:
        eventually(partial(is_completed, host.wire, run_id))


def is_quarantined_or_dead(host: FragileHost) -> bool:
    """Start the host; return False when it dies again before a run is quarantined."""
    host.start()
    found: list[str] = []

    def is_over() -> bool:
        with suppress(httpx.HTTPError):
            found.extend(quarantined(host.wire, "true"))
        return bool(found) or host.running.poll() is not None

    eventually(is_over)
    return bool(found)


def test_no_run_is_quarantined_when_the_process_is_killed_from_outside(
    host: FragileHost,
) -> None:
    alone = host.wire.create(LONG)
    for _ in range(5):
        # Time for the process to start the recovery of the run.
        time.sleep(0.4)
        host.kill()
        host.start()

    eventually(partial(is_completed, host.wire, alone))
    host.check()


def is_completed(wire: Wire, run_id: str) -> bool:
    shown = wire.snapshot(run_id)
    assert "quarantine" not in shown
    return bool(shown["status"] == "completed")


def quarantined(wire: Wire, value: str) -> list[str]:
    found = wire.document("/v1/runs", params={"quarantined": value})["items"]
    return [run["runId"] for run in found]


def test_a_quarantined_run_continues_when_a_person_of_its_tenant_resumes_it(
    host: FragileHost, harmless: Path
) -> None:
    bad, _ = kill_until_quarantined(host)
    with Wire(host.url, GLOBEX) as globex, Wire(host.url, VIEWER) as viewer:
        assert globex.post(f"/v1/runs/{bad}:resume").status_code == 404
        assert viewer.post(f"/v1/runs/{bad}:resume").status_code == 403
    shown = host.command("runs", "show", bad, "--url", host.url, "--api-key", ACME)
    assert f"wopr runs resume {bad}" in shown
    with Person(host.url) as person:
        assert person.sign_in(ACME).status_code == 303
        page = person.page(f"/runs/{bad}")
        assert "In quarantine" in page.text
        assert f"/runs/{bad}/resume" in page.links

    harmless.touch()
    host.command("runs", "resume", bad, "--url", host.url, "--api-key", ACME)

    assert host.wire.finished(bad)["status"] == "completed"
    assert "quarantine" not in host.wire.snapshot(bad)
    entries = host.wire.document("/v1/audit", params={"limit": 200})["items"]
    [released] = [each for each in entries if each["action"] == "run.release"]
    assert bad in str(released)
    host.check()


@contextmanager
def freezing(host: FragileHost) -> Iterator[None]:
    """Start the run that freezes the process; its response comes after the freeze, if at all."""

    def ask() -> None:
        with Wire(host.url, ACME) as wire:
            start_bad_run(wire, FREEZE)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    thread.join()


def freezes(host: FragileHost) -> int:
    return host.log().count("a run freezes the process")


def is_quarantined_or_frozen(host: FragileHost) -> bool:
    """Start the host; return False when a run freezes it again before a run is quarantined."""
    before = freezes(host)
    # A frozen process may not print its address.
    host.launch()
    found = False

    def is_over() -> bool:
        nonlocal found
        runs = Stored(host.database).runs.values()
        found = any(run.row.quarantined_at is not None for run in runs)
        return found or freezes(host) > before

    eventually(is_over)
    return found


def test_a_run_that_freezes_the_process_until_it_is_killed_is_quarantined(
    host: FragileHost,
) -> None:
    good = host.wire.create(GOOD)
    with freezing(host):
        eventually(lambda: freezes(host) == 1)
        host.kill()
    deaths = 1
    while not is_quarantined_or_frozen(host):
        deaths += 1
        assert deaths <= MAX_FREEZES
        host.kill()
    host.kill()

    host.start()

    bad = run_of(host.wire, FREEZE)
    assert "quarantine" in host.wire.snapshot(bad)
    assert host.wire.finished(good)["status"] == "completed"
    assert host.wire.snapshot(bad)["status"] == "running"


def test_a_run_that_freezes_the_process_for_a_while_is_not_quarantined(
    host: FragileHost, harmless: Path
) -> None:
    with freezing(host):
        eventually(lambda: freezes(host) == 1)
        harmless.touch()

    bad = run_of(host.wire, FREEZE)

    assert host.wire.finished(bad)["status"] == "completed"
    host.check()
