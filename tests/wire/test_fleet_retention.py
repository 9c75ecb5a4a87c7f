"""Pushed runs are kept forever, unless the operator sets a limit, which pushes announce."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.kahn import KahnRun, push, push_run

pytestmark = pytest.mark.both_stores

LONG_AGO = "2019-01-01T00:00:00.000Z"


def test_a_run_with_an_old_producer_time_is_kept_over_restarts(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story = new_host(), KahnRun(ts=LONG_AGO)
    run_id = push_run(connect(at=host), *story.whole())
    # Retention runs when a host starts.
    host.restart()
    wire = connect(at=host)

    assert wire.document(f"/api/runs/{story.run_id}")["run"]["lines"] == len(story.whole())
    assert wire.snapshot(run_id)["status"] == "completed"
    assert push(wire, story.check(checkpoint_id="late")).json()["accepted"] == 1


def test_a_push_names_the_caller_s_runs_that_expire_soon(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_FLEET_KEEP_DAYS="5")
    acme, globex = connect(ACME, host), connect(GLOBEX, host)
    old, new = KahnRun(ts=LONG_AGO), KahnRun()
    push(acme, old.start())

    told, other = push(acme, new.start()).json(), push(globex, new.start()).json()

    [expiring] = told["expiring"]
    assert expiring["run_id"] == old.run_id
    assert expiring["drops_at"] > "2026"
    assert "expiring" not in other
    host.restart()
    kept = connect(ACME, host).document(f"/api/runs/{old.run_id}")
    assert kept["run"]["run_id"] == old.run_id


def test_without_a_limit_a_push_names_no_runs(acme: Wire) -> None:
    push(acme, KahnRun(ts=LONG_AGO).start())

    assert "expiring" not in push(acme, KahnRun().start()).json()
