from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.interrupts import EVENT, accepted, by_token, events, payload, token_of
from wopr.protocol.documents import Json


def test_an_external_event_is_completed_by_its_token(fixtures: Wire, anonymous: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")
    before = fixtures.snapshot(run_id)
    token = token_of(fixtures, run_id)

    response = by_token(fixtures, token, EVENT | {"externalReference": "r-1"})

    assert (before["status"], before["currentNodeId"]) == ("waiting-external", "wait-for-external")
    assert before["interrupt"]["callbackUrl"].startswith("/v1/interrupts/")
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    done = fixtures.snapshot(run_id)
    assert done["outputs"] == {"wait-for-external": EVENT | {"externalReference": "r-1"}}
    assert "interrupt" not in done


def test_a_bearer_key_can_deliver_the_event_too(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")

    assert accepted(fixtures, run_id, "wait-for-external", EVENT) == "completed"


def test_a_wrapped_event_is_passed_on_like_a_flat_one(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")

    response = by_token(fixtures, token_of(fixtures, run_id), {"eventPayload": EVENT})

    assert response.json()["status"] == "completed"
    assert fixtures.snapshot(run_id)["outputs"] == {"wait-for-external": EVENT}


@pytest.mark.parametrize(
    "value",
    [
        {"orderId": "fixture-order-1"},
        EVENT | {"orderId": "another"},
        EVENT | {"status": True},
        {"eventPayload": {"orderId": "another"}},
    ],
)
def test_an_event_that_does_not_match_changes_neither_run_nor_token(
    fixtures: Wire, value: Json
) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")
    token = token_of(fixtures, run_id)

    response = by_token(fixtures, token, value)

    assert (response.status_code, response.json()["error"]) == (422, "correlation_mismatch")
    assert fixtures.snapshot(run_id)["status"] == "waiting-external"
    assert by_token(fixtures, token, EVENT).json()["status"] == "completed"


def test_an_event_delivered_twice_takes_effect_once(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")
    token = token_of(fixtures, run_id)
    by_token(fixtures, token, EVENT)
    log = fixtures.log(run_id)

    again = by_token(fixtures, token, EVENT)

    assert (again.status_code, again.json()["error"]) == (409, "interrupt_already_resolved")
    assert fixtures.log(run_id) == log
    assert len(events(fixtures, run_id, "interrupt.resolved")) == 1


def test_the_request_contains_the_timeout_of_the_event(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-external-event")

    requested = payload(fixtures, run_id, "interrupt.requested")

    assert requested["timeoutMs"] == 60_000
    assert requested["data"]["correlation"] == EVENT
    assert fixtures.snapshot(run_id)["interrupt"]["payload"] == requested


def test_discovery_reports_that_early_events_are_not_stored(acme: Wire) -> None:
    extension = acme.document("/.well-known/openwop")["extensions"]["interrupts"]

    assert extension["externalEventRetentionSeconds"] == 0
    assert {
        "openwop-interrupt-quorum",
        "openwop-interrupt-auth-required",
        "openwop-interrupt-external-event",
        "openwop-interrupt-cascade-cancel",
    } <= set(extension["profiles"])
