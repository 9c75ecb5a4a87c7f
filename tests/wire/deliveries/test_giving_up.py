"""Dead letters: deliveries that failed finally, and are made later or after a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.eventually import eventually
from tests.support.host import ACME, ServedHost
from tests.support.webhook_receiver import Receiver, take
from tests.wire.conftest import Connect
from tests.wire.deliveries.subscribing import QUICK, signature, state_of, subscribed, taken
from wopr.protocol.documents import Json, JsonObject

# Dead letters


@pytest.fixture
def curt_host(new_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host that tries an event twice."""
    curt = {"WOPR_WEBHOOK_ATTEMPTS": "2", "WOPR_WEBHOOK_RETRY_MS": "1"}
    return new_host("--conformance", **(QUICK | curt))


def test_dead_letters_are_listed_and_can_be_delivered_later(
    curt_host: ServedHost, connect: Connect, receiver: Receiver
) -> None:
    acme = connect(ACME, curt_host)
    receiver.behave = lambda request, handler: handler.answer(500)
    with subscribed(acme, receiver.url) as made:
        path = f"/v1/webhooks/{made['webhookId']}/dead-letters"
        run_id = acme.run("conformance-noop")["runId"]
        length = len(acme.log(run_id))
        eventually(lambda: len(acme.document(path)["items"]) == length)
        letters = acme.document(path)["items"]
        pages = [acme.document(path, params={"limit": 1})]
        while "nextCursor" in pages[-1]:
            cursor = pages[-1]["nextCursor"]
            pages.append(acme.document(path, params={"limit": 1, "cursor": cursor}))

        receiver.requests.clear()
        receiver.behave = take
        redelivered = acme.post(f"{path}:redeliver")
        receiver.until_ended(run_id)
        eventually(lambda: acme.document(path)["items"] == [])

    assert [item for page in pages for item in page["items"]] == letters
    assert {letter["sequence"] for letter in letters} == set(range(length))
    assert {(letter["runId"], letter["attempts"]) for letter in letters} == {(run_id, 2)}
    assert {letter["reason"] for letter in letters} == {"the receiver answered 500"}
    assert (redelivered.status_code, redelivered.json()) == (
        202,
        {"redelivered": length, "hasMore": False},
    )
    assert taken(receiver.requests, run_id) == list(range(length))


def test_five_failures_in_a_row_open_the_circuit_and_a_success_closes_it(
    new_host: Callable[..., ServedHost], connect: Connect, receiver: Receiver
) -> None:
    host = new_host("--conformance", **(QUICK | {"WOPR_WEBHOOK_OPEN_SECONDS": "2"}))
    acme = connect(ACME, host)
    receiver.behave = lambda request, handler: handler.answer(500)
    with subscribed(acme, receiver.url) as made:
        runs = [acme.run("conformance-noop")["runId"] for _ in range(3)]
        opened: JsonObject = {}

        def is_open() -> bool:
            opened.update(state_of(acme, made["webhookId"]))
            return bool(opened["state"] == "open")

        eventually(is_open)
        count = len(receiver.requests)
        acme.run("conformance-noop")
        assert len(receiver.requests) - count <= 8
        receiver.behave = take
        receiver.until_ended(*runs)
        eventually(lambda: state_of(acme, made["webhookId"])["state"] == "active")

    assert opened["consecutiveFailures"] >= 4
    assert "openUntil" in opened
    for run_id in runs:
        assert taken(receiver.requests, run_id) == list(range(len(acme.log(run_id))))


# After a restart


def test_undelivered_events_are_delivered_after_a_restart(
    new_host: Callable[..., ServedHost], connect: Connect, receiver: Receiver
) -> None:
    host = new_host("--conformance", **QUICK)
    before = connect(ACME, host)
    receiver.behave = lambda request, handler: handler.answer(500)
    made: Json = before.post("/v1/webhooks", {"url": receiver.url, "events": ["*"]}).json()
    run_id = before.run("conformance-multi-node")["runId"]
    receiver.until(lambda came: len(came) > 0)

    host.restart()
    receiver.behave = take
    requests = receiver.until_ended(run_id)

    assert taken(requests, run_id) == list(range(len(connect(ACME, host).log(run_id))))
    assert requests[-1].headers["x-openwop-signature"] == signature(made["secret"], requests[-1])
