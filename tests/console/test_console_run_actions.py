from __future__ import annotations

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import TenantData
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import delay, workflow
from tests.support.host import ACME, DEVELOPER, REVIEWER, VIEWER
from wopr.protocol.documents import JsonObject


def run_of(location: str) -> str:
    """Return the run that a response redirects to."""
    return location.removeprefix("/runs/").partition("?")[0]


def test_a_run_is_paused_resumed_and_cancelled(acme: Person, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([delay("wait", 600_000)])))
    path = f"/runs/{run_id}"

    acme.post(f"{path}/pause", drainPolicy="immediate", reason="lunch")
    paused = wire.snapshot(run_id)["status"]
    acme.post(f"{path}/resume", reason="lunch is over")
    resumed = wire.snapshot(run_id)["status"]
    answer = acme.post(f"{path}/cancel", reason="enough")

    [event] = [each for each in wire.log(run_id) if each["type"] == "run.resumed"]
    assert event["payload"] == {"reason": "lunch is over"}
    assert (paused, resumed) == ("paused", "running")
    assert answer.headers["location"] == f"{path}?done=cancelled"
    assert wire.snapshot(run_id)["status"] == "cancelled"
    assert "The run is cancelled." in acme.get(f"{path}?done=cancelled").text


def test_an_impossible_action_says_why(acme: Person, acme_data: TenantData) -> None:
    answer = acme.post(f"/runs/{acme_data.ended}/pause")

    assert answer.status_code == 409
    assert "Only a running run can be paused" in answer.text


def test_a_fork_shows_a_preview_before_it_is_made(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    preview = acme.page(f"/runs/{run_id}/fork?mode=branch&from=9")
    answer = acme.post(f"/runs/{run_id}/fork", **{"mode": "branch", "from": "9", "tags": "a, b"})

    for told in ("who", "greet-you", "breathe", "sign-out"):
        assert told in preview.text
    forked = wire.finished(run_of(answer.headers["location"]))
    assert forked["sourceRunId"] == run_id
    assert forked["outputs"] == {"message": "Hello, Grace!"}


def test_a_replay_repeats_the_record(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    answer = acme.post(f"/runs/{run_id}/fork", **{"mode": "replay", "from": "0"})

    replayed = run_of(answer.headers["location"])
    assert wire.finished(replayed)["status"] == "completed"
    assert wire.types(replayed) == wire.types(run_id)


@pytest.mark.parametrize(
    ("form", "signal"),
    [
        ({"rating": "4"}, {"kind": "rating", "rating": 4}),
        ({"kind": "correction", "text": "No."}, {"kind": "correction", "correction": "No."}),
        ({"kind": "label", "text": "odd"}, {"kind": "label", "label": "odd"}),
        ({"kind": "flag"}, {"kind": "flag"}),
    ],
)
def test_feedback_is_stored_at_its_target(
    acme: Person, wire: Wire, form: dict[str, str], signal: JsonObject
) -> None:
    run_id = wire.run("conformance-noop")["runId"]
    event = wire.log(run_id)[1]["eventId"]

    answer = acme.post(f"/runs/{run_id}/feedback", eventId=event, place="e1", **form)

    assert answer.headers["location"] == f"/runs/{run_id}?done=annotated#e1"
    [stored] = wire.document(f"/v1/runs/{run_id}/annotations")["annotations"]
    assert stored["signal"] == signal
    assert stored["target"] == {"runId": run_id, "eventId": event}
    assert "event 1" in acme.page(f"/runs/{run_id}").text


@pytest.mark.parametrize(
    "form",
    [{}, {"rating": "6"}, {"kind": "label"}, {"kind": "love"}, {"kind": "flag", "eventId": "x"}],
)
def test_invalid_feedback_is_refused(acme: Person, wire: Wire, form: dict[str, str]) -> None:
    run_id = wire.run("conformance-noop")["runId"]

    assert acme.post(f"/runs/{run_id}/feedback", **form).status_code == 400
    assert wire.document(f"/v1/runs/{run_id}/annotations")["annotations"] == []


@pytest.mark.parametrize(
    ("key", "offers"),
    [
        (ACME, {"cancel", "fork", "feedback"}),
        (DEVELOPER, {"cancel", "fork", "feedback"}),
        (REVIEWER, {"feedback"}),
        (VIEWER, set[str]()),
    ],
)
def test_actions_are_shown_only_to_those_who_may_use_them(
    signed_in: SignedIn, acme_data: TenantData, key: str, offers: set[str]
) -> None:
    page = signed_in(key).page(f"/runs/{acme_data.run_id}")

    actions = [*page.links, *(found["action"] for found in page.all("form"))]
    path = f"/runs/{acme_data.run_id}/"
    seen = {
        name
        for name in ("cancel", "pause", "fork", "feedback")
        if any(each.startswith(path + name) for each in actions)
    }
    assert seen - {"pause"} == offers
