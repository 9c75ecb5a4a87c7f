from __future__ import annotations

import time

import pytest

from tests.support.client import Wire
from tests.support.definitions import node
from tests.support.eventually import eventually
from tests.support.host import DEVELOPER, VIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    EVENT,
    REFINE,
    REJECT,
    accepted,
    by_token,
    external,
    gate,
    inbox,
    payload,
    token_of,
    until_waiting,
    waiting_run,
)
from tests.wire.conftest import Connect
from tests.wire.tokens import HALF_AN_HOUR, contents

# Content


def test_a_token_contains_its_wait_its_expiry_and_its_right(acme: Wire) -> None:
    before = round(time.time() * 1000)
    run_id = waiting_run(acme, gate())

    said = contents(token_of(acme, run_id))

    expires_at = said.pop("expiresAt")
    assert said == {
        "tenant": "acme",
        "runId": run_id,
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "intent": "resolve",
    }
    assert before + HALF_AN_HOUR <= expires_at <= round(time.time() * 1000) + HALF_AN_HOUR


def test_a_token_expires_with_the_wait(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(timeoutMs=60_000))

    expires_at = contents(token_of(acme, run_id))["expiresAt"]

    assert expires_at <= round(time.time() * 1000) + 60_000
    [item] = inbox(acme, runId=run_id)
    inspected = acme.document(f"/v1/interrupts/{token_of(acme, run_id)}")
    assert inspected["expiresAt"] == item["expiresAt"]


def test_the_snapshot_of_a_waiting_run_shows_the_wait_and_how_to_answer_it(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())

    shown = acme.snapshot(run_id)["interrupt"]

    token = shown["interruptToken"]
    assert shown["callbackUrl"] == f"/v1/interrupts/{token}"
    assert (shown["kind"], shown["nodeId"], shown["interruptId"]) == (
        "approval",
        "gate",
        "int-gate:0",
    )
    assert shown["payload"] == payload(acme, run_id, "interrupt.requested")


# End


def test_a_token_ends_when_its_wait_is_answered(acme: Wire, anonymous: Wire) -> None:
    run_id = waiting_run(acme, gate(), gate("second"))
    token = token_of(acme, run_id)
    accepted(acme, run_id, "gate", ACCEPT)

    for response in (anonymous.get(f"/v1/interrupts/{token}"), by_token(anonymous, token, ACCEPT)):
        assert response.status_code == 409
        assert response.json()["error"] == "interrupt_already_resolved"
    assert acme.snapshot(run_id)["currentNodeId"] == "second"


def test_a_token_ends_when_its_run_is_cancelled(acme: Wire, anonymous: Wire) -> None:
    run_id = waiting_run(acme, gate())
    token = token_of(acme, run_id)
    acme.post(f"/v1/runs/{run_id}/cancel", {})

    for response in (anonymous.get(f"/v1/interrupts/{token}"), by_token(anonymous, token, ACCEPT)):
        assert response.status_code == 409
        assert response.json()["error"] == "interrupt_already_resolved"


def test_a_token_ends_when_its_run_ends_otherwise(acme: Wire, anonymous: Wire) -> None:
    run_id = waiting_run(acme, gate(), gate("other"), edges=[])
    token = token_of(acme, run_id)

    assert contents(token)["nodeId"] == "gate"
    assert accepted(acme, run_id, "other", REJECT) == "failed"
    assert by_token(anonymous, token, ACCEPT).json()["error"] == "interrupt_already_resolved"


def test_a_token_of_an_earlier_version_does_not_approve_the_next(
    acme: Wire, anonymous: Wire
) -> None:
    run_id = waiting_run(acme, node("work"), gate(actions=["accept", "refine"]))
    token = token_of(acme, run_id)
    accepted(acme, run_id, "gate", REFINE)

    assert by_token(anonymous, token, ACCEPT).status_code == 409
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


# Secrecy


@pytest.mark.parametrize("key", [VIEWER, DEVELOPER])
def test_a_reader_without_the_right_to_answer_sees_the_wait_without_its_token(
    acme: Wire, connect: Connect, key: str
) -> None:
    run_id = waiting_run(acme, gate())

    shown = connect(key).snapshot(run_id)["interrupt"]

    assert shown["interruptId"] == "int-gate:0"
    assert not {"interruptToken", "callbackUrl"} & shown.keys()


def test_a_snapshot_with_a_token_must_not_be_cached(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, gate())

    assert acme.get(f"/v1/runs/{run_id}").headers["cache-control"] == "no-store"
    assert connect(VIEWER).get(f"/v1/runs/{run_id}").headers["cache-control"] == "no-cache"


def test_no_token_is_in_events_streams_listings_or_the_host_s_log(
    acme: Wire, anonymous: Wire, host: ServedHost
) -> None:
    run_id = waiting_run(acme, external())
    token = token_of(acme, run_id)
    anonymous.get(f"/v1/interrupts/{token}")
    by_token(anonymous, token, {"orderId": "wrong"})
    seen = [str(inbox(acme, runId=run_id)), str(acme.get("/v1/runs").text)]
    by_token(anonymous, token, EVENT | {"orderId": "o1"})
    by_token(anonymous, token, EVENT | {"orderId": "o1"})

    frames = acme.frames(run_id, streamMode="values") + acme.frames(run_id, streamMode="debug")
    seen += [str(acme.log(run_id)), *(frame.data for frame in frames)]

    signature = token.partition(".")[2]
    eventually(lambda: "answerByToken" in host.log())
    assert not [text for text in (*seen, host.log()) if signature in text]
    assert "/v1/interrupts/{token}" in host.log()


def test_the_parent_of_a_waiting_child_shows_no_token(acme: Wire) -> None:
    run_id = acme.create("conformance-interrupt-parent-child-cancel")

    shown = until_waiting(acme, run_id)

    assert "interrupt" not in shown
