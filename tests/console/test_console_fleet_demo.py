"""The demo on the first visit: loaded by one button, marked, and gone by another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.client import Person
from tests.console.conftest import SignedIn
from tests.wire.client import Wire
from tests.wire.fleet import Story, pushed
from tests.wire.host import ACME, GLOBEX, ServedHost
from wopr.fleet.demo import PROFILES


@pytest.fixture
def new(new_host: Callable[..., ServedHost]) -> ServedHost:
    """A host that nobody has pushed anything to."""
    return new_host()


@pytest.fixture
def person(new: ServedHost, signed_in: SignedIn) -> Person:
    return signed_in(ACME, new)


def test_an_empty_fleet_offers_the_demo_and_shows_two_commands(person: Person) -> None:
    markup = person.page("/fleet")

    [form] = [found for found in markup.all("form") if found["action"] == "/fleet/demo"]
    assert form["method"] == "post"
    assert markup.all("button", name="do", value="load")
    assert "wopr fleet demo --push" in markup.text
    assert "wopr fleet push logs" in markup.text


def test_the_demo_is_loaded_into_the_caller_s_tenant_and_marked(
    new: ServedHost, person: Person, signed_in: SignedIn
) -> None:
    answer = person.post("/fleet/demo", do="load")

    assert (answer.status_code, answer.headers["location"]) == (303, "/fleet?done=demo-loaded")
    text = person.page("/fleet").text
    assert all(profile.agent_id in text for profile in PROFILES)
    assert "Made-up runs are in this fleet" in text
    assert "demo" in person.page("/fleet/runs/demo-open").text
    assert "coder" not in signed_in(GLOBEX, new).get("/fleet").text


def test_to_load_it_twice_is_to_load_it_once(person: Person) -> None:
    person.post("/fleet/demo", do="load")

    again = person.post("/fleet/demo", do="load")

    assert again.status_code == 303


def test_to_remove_it_leaves_what_is_one_s_own(new: ServedHost, person: Person) -> None:
    own = Story("coder")
    own.run_id = "demo-coder-9999"
    with Wire(new.url, ACME) as wire:
        kept = pushed(wire, own.start(run_id=own.run_id), own.end(run_id=own.run_id))
        person.post("/fleet/demo", do="load")

        answer = person.post("/fleet/demo", do="remove")

        assert answer.headers["location"] == "/fleet?done=demo-removed"
        assert [run["run_id"] for run in wire.document("/api/runs")["runs"]] == [own.run_id]
        listed = wire.document("/v1/runs", params={"limit": 200})["items"]
        assert [item["runId"] for item in listed] == [kept]
    assert "Made-up" not in person.page("/fleet").text


def test_after_its_removal_it_can_be_loaded_anew(new: ServedHost, person: Person) -> None:
    person.post("/fleet/demo", do="load")
    with Wire(new.url, ACME) as wire:
        run_id = wire.document("/api/runs/demo-open")["run"]["openwop_run_id"]
        assert person.get(f"/runs/{run_id}").status_code == 200
        person.post("/fleet/demo", do="remove")
        gone = person.get(f"/runs/{run_id}").status_code

        person.post("/fleet/demo", do="load")

        log = wire.log(run_id)
        assert gone == 404
        assert [event["sequence"] for event in log] == list(range(len(log)))
        shown = person.page(f"/runs/{run_id}/events/1").text
        assert log[1]["payload"]["ts"] in shown


def test_both_are_on_the_audit_log(new: ServedHost, person: Person) -> None:
    person.post("/fleet/demo", do="load")
    person.post("/fleet/demo", do="remove")

    with Wire(new.url, ACME) as wire:
        told = [entry["action"] for entry in wire.document("/v1/audit")["items"]]

    assert [action for action in told if action.startswith("fleet.")] == [
        "fleet.demo.remove",
        "fleet.demo.load",
    ]


def test_what_is_neither_is_refused(person: Person) -> None:
    answer = person.post("/fleet/demo", do="double")

    assert answer.status_code == 400
    assert "do must be one of load, remove" in answer.text
