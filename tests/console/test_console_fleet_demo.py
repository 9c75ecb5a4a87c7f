"""The demo on the first visit: loaded by one button, marked, and removed by another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.conftest import SignedIn
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.kahn import KahnRun, push_run
from wopr.kahn.demo.generator import PROFILES


@pytest.fixture
def new(new_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host without pushed lines."""
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
    assert "This fleet contains fictional demo runs" in text
    assert "demo" in person.page("/fleet/runs/demo-open").text
    assert "coder" not in signed_in(GLOBEX, new).get("/fleet").text


def test_loading_the_demo_twice_has_no_effect(person: Person) -> None:
    person.post("/fleet/demo", do="load")

    again = person.post("/fleet/demo", do="load")

    assert again.status_code == 303


def test_removing_the_demo_keeps_other_runs(new: ServedHost, person: Person) -> None:
    own = KahnRun("coder")
    own.run_id = "demo-coder-9999"
    with Wire(new.url, ACME) as wire:
        kept = push_run(wire, own.start(run_id=own.run_id), own.end(run_id=own.run_id))
        person.post("/fleet/demo", do="load")

        answer = person.post("/fleet/demo", do="remove")

        assert answer.headers["location"] == "/fleet?done=demo-removed"
        assert [run["run_id"] for run in wire.document("/api/runs")["runs"]] == [own.run_id]
        listed = wire.document("/v1/runs", params={"limit": 200})["items"]
        assert [item["runId"] for item in listed] == [kept]
    assert "Made-up" not in person.page("/fleet").text


def test_the_demo_can_be_loaded_again_after_its_removal(new: ServedHost, person: Person) -> None:
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


def test_loading_and_removing_are_in_the_audit_log(new: ServedHost, person: Person) -> None:
    person.post("/fleet/demo", do="load")
    person.post("/fleet/demo", do="remove")

    with Wire(new.url, ACME) as wire:
        told = [entry["action"] for entry in wire.document("/v1/audit")["items"]]

    assert [action for action in told if action.startswith("fleet.")] == [
        "fleet.demo.remove",
        "fleet.demo.load",
    ]


def test_an_unknown_action_is_refused(person: Person) -> None:
    answer = person.post("/fleet/demo", do="double")

    assert answer.status_code == 400
    assert "do must be one of load, remove" in answer.text
