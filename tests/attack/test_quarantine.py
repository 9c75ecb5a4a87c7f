"""A run that kills every process that recovers it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from tests.attack.attacked_host import ALICE, AttackedHost, HonestClient, honest_http, new_host
from tests.conftest import Database
from tests.fault.test_quarantine import APP, quarantined
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually

KILL, SLOW = "mallory-kills", "alice-works"


def test_a_run_that_kills_the_process_at_recovery_is_quarantined_and_others_continue(
    tmp_path: Path, new_database: Callable[[], Database]
) -> None:
    harmless, app = tmp_path / "harmless", tmp_path / "app.py"
    app.write_text(APP.format(harmless=str(harmless)))
    with new_database() as variables:
        host = new_host(tmp_path / "host", ("--app", str(app)), dict(variables))
        host.start()
        try:
            attack(host, harmless)
        finally:
            if host.process is not None and host.process.poll() is not None:
                host.process = None
            elif host.process is not None:
                host.check()


def attack(host: AttackedHost, harmless: Path) -> None:
    with Wire(host.url, ALICE) as alice:
        innocent = alice.create(alice.register(workflow([node("a", "good.slow")], id=SLOW)))
    with host.client() as mallory:
        mallory.register(workflow([node("a", "bad.kill")], id=KILL))
        # The process may end before it responds.
        with suppress(httpx.HTTPError):
            mallory.post("/v1/runs", {"workflowId": KILL})
    host.wait_for_exit()
    for _ in range(2):
        host.launch()
        assert host.wait_for_exit() == -9

    host.start()

    with host.client() as mallory, HonestClient(host) as honest:
        eventually(lambda: bool(quarantined(mallory, "true")))
        [bad] = quarantined(mallory, "true")
        told = mallory.snapshot(bad)["quarantine"]
        honest.wait_for_round()
    assert told["crashes"] >= 2
    with Wire(host.url, ALICE) as alice:
        assert quarantined(alice, "true") == []
        assert alice.finished(innocent)["status"] == "completed"

    harmless.touch()
    with host.client() as mallory:
        assert mallory.post(f"/v1/runs/{bad}:resume").status_code == 202
        assert mallory.finished(bad)["status"] == "completed"
        assert quarantined(mallory, "true") == []
    with honest_http(host.url) as http:
        assert http.get("/healthz").status_code == 200
