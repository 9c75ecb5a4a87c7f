"""Pushed runs are kept for ever, unless the operator sets a limit: then it is told in time."""

from __future__ import annotations

from collections.abc import Callable

from tests.wire.client import Wire
from tests.wire.fleet import Story, push, pushed
from tests.wire.host import ACME, GLOBEX, ServedHost

LONG_AGO = "2019-01-01T00:00:00.000Z"


def test_a_run_of_a_producer_s_past_is_kept_over_restarts(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host, story = new_host(), Story(ts=LONG_AGO)
    run_id = pushed(connect(at=host), *story.whole())
    # Retention runs when a host starts.
    host.restart()
    wire = connect(at=host)

    assert wire.document(f"/api/runs/{story.run_id}")["run"]["lines"] == len(story.whole())
    assert wire.snapshot(run_id)["status"] == "completed"
    assert push(wire, story.check(checkpoint_id="late")).json()["accepted"] == 1


def test_a_push_names_the_caller_s_runs_that_are_dropped_soon(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_FLEET_KEEP_DAYS="5")
    acme, globex = connect(ACME, host), connect(GLOBEX, host)
    old, new = Story(ts=LONG_AGO), Story()
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
    push(acme, Story(ts=LONG_AGO).start())

    assert "expiring" not in push(acme, Story().start()).json()
