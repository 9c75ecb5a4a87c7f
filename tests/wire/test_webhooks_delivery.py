"""Deliveries on the wire: signed, in order, repeated until taken, and only to whom they belong."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.definitions import node, workflow
from tests.wire.forking import forked
from tests.wire.host import ACME, GLOBEX, ServedHost, served
from tests.wire.receiver import Handler, Received, Receiver, receiving, take
from wopr.protocol.documents import Json, JsonObject

DEADLINE_SECONDS = 20
QUICK = {
    "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
    "WOPR_WEBHOOK_RETRY_MS": "20",
    "WOPR_WEBHOOK_OPEN_SECONDS": "0.1",
}


@pytest.fixture(scope="module")
def quick_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host that may dial this machine, and is not patient."""
    with served(tmp_path_factory.mktemp("quick"), "--conformance", **QUICK) as running:
        yield running


@pytest.fixture
def acme(quick_host: ServedHost, connect: Connect) -> Wire:
    return connect(ACME, quick_host)


@pytest.fixture
def globex(quick_host: ServedHost, connect: Connect) -> Wire:
    return connect(GLOBEX, quick_host)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@contextmanager
def subscribed(
    wire: Wire, url: str, *events: str, tags: list[str] | None = None
) -> Iterator[JsonObject]:
    """A subscription for as long as the block lasts."""
    body: JsonObject = {"url": url, "events": list(events or ("*",)), "tags": tags or []}
    response = wire.post("/v1/webhooks", body)
    assert response.status_code == 201, response.text
    made: JsonObject = response.json()
    try:
        yield made
    finally:
        wire.request("DELETE", f"/v1/webhooks/{made['webhookId']}")


def state_of(wire: Wire, webhook_id: str) -> JsonObject:
    items = wire.document("/v1/webhooks", params={"limit": 200})["items"]
    found: JsonObject = next(item for item in items if item["webhookId"] == webhook_id)
    return found


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def signature(secret: str, request: Received) -> str:
    signed = f"{request.headers['x-openwop-timestamp']}.".encode() + request.body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def taken(requests: list[Received], run_id: str) -> list[int]:
    """The sequences of a run in the order in which they came, repetitions left out."""
    of_run = [r.json["sequence"] for r in requests if r.json["runId"] == run_id]
    return list(dict.fromkeys(of_run))


def test_a_delivery_is_the_event_signed_and_named_in_both_sets_of_headers(
    acme: Wire, receiver: Receiver
) -> None:
    with subscribed(acme, f"{receiver.url}/in?x=1", "run.completed") as made:
        run_id = acme.run("conformance-noop")["runId"]
        [request] = receiver.until_ended(run_id)

    event = acme.log(run_id)[-1]
    assert request.path == "/in?x=1"
    assert request.json == event | {"workspaceId": "acme", "event": event}
    headers = request.headers
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("openwop-webhook-dispatcher/")
    assert headers["x-openwop-signature"] == signature(made["secret"], request)
    assert abs(int(headers["x-openwop-timestamp"]) - time.time()) < 300
    assert headers["x-openwop-webhook-id"] == made["webhookId"]
    assert headers["x-openwop-event-type"] == "run.completed"
    assert headers["x-openwop-signature-algorithm"] == "v1"
    for name in ("webhook-id", "event-type", "timestamp", "signature", "signature-algorithm"):
        assert headers[f"openwop-{name}"] == headers[f"x-openwop-{name}"]
    assert "authorization" not in headers
    assert "x-openwop-signature-next" not in headers


def test_every_event_comes_once_and_in_the_order_of_the_log(acme: Wire, receiver: Receiver) -> None:
    with subscribed(acme, receiver.url):
        runs = [acme.create("conformance-multi-node") for _ in range(10)]
        requests = receiver.until_ended(*runs)

    for run_id in runs:
        came = [r.json["sequence"] for r in requests if r.json["runId"] == run_id]
        assert came == list(range(len(acme.log(run_id))))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["run.started"], {"run.started"}),
        (["run.*"], {"run.started", "run.completed"}),
        (["node.completed", "run.completed"], {"node.completed", "run.completed"}),
        (["agent.*", "run.completed"], {"run.completed"}),
    ],
)
def test_only_the_events_that_were_asked_for_come(
    acme: Wire, receiver: Receiver, patterns: list[str], expected: set[str]
) -> None:
    with (
        receiving() as control,
        subscribed(acme, receiver.url, *patterns),
        subscribed(acme, control.url),
    ):
        control.until_ended(acme.run("conformance-noop")["runId"])
        receiver.until(lambda came: {r.json["type"] for r in came} >= expected)

    assert {request.json["type"] for request in receiver.requests} == expected


def test_a_subscription_with_tags_hears_of_runs_that_share_one(
    acme: Wire, receiver: Receiver
) -> None:
    with receiving() as control:
        tagged = subscribed(acme, receiver.url, "run.*", tags=["red", "blue"])
        with tagged, subscribed(acme, control.url):
            blue = acme.run("conformance-noop", tags=["blue", "green"])["runId"]
            others = [
                acme.run("conformance-noop")["runId"],
                acme.run("conformance-noop", tags=["green"])["runId"],
            ]
            control.until_ended(blue, *others)
            receiver.until_ended(blue)

    assert {request.json["runId"] for request in receiver.requests} == {blue}


def test_a_child_run_is_told_of_too(acme: Wire, receiver: Receiver) -> None:
    with subscribed(acme, receiver.url, "run.*"):
        parent = acme.run("conformance-subworkflow-parent")
        child = parent["childRuns"][0]["runId"]
        requests = receiver.until_ended(parent["runId"], child)

    starts = [r.json["runId"] for r in requests if r.json["type"] == "run.started"]
    assert sorted(starts) == sorted([parent["runId"], child])


def test_one_tenants_subscription_never_hears_of_anothers_runs(
    acme: Wire, globex: Wire, receiver: Receiver
) -> None:
    with receiving() as theirs, subscribed(acme, receiver.url), subscribed(globex, theirs.url):
        ours = [acme.run("conformance-noop")["runId"] for _ in range(5)]
        others = [globex.run("conformance-noop")["runId"] for _ in range(5)]
        receiver.until_ended(*ours)
        theirs.until_ended(*others)

    assert {request.json["runId"] for request in receiver.requests} == set(ours)
    assert {request.json["runId"] for request in theirs.requests} == set(others)
    assert {request.json["workspaceId"] for request in theirs.requests} == {"globex"}


def test_a_replay_tells_nobody_and_a_branch_does(acme: Wire, receiver: Receiver) -> None:
    source = acme.run("conformance-multi-node")["runId"]

    with subscribed(acme, receiver.url):
        replay = forked(acme, source)
        middle = forked(acme, source, fromSeq=4)
        branch = forked(acme, source, "branch", fromSeq=3)
        requests = receiver.until_ended(branch)

    told = {request.json["runId"] for request in requests}
    assert told == {branch}
    assert {replay, middle}.isdisjoint(told)
    assert taken(requests, branch) == list(range(len(acme.log(branch))))


def test_nothing_is_sent_any_more_to_a_webhook_that_was_deleted(
    acme: Wire, receiver: Receiver
) -> None:
    with subscribed(acme, receiver.url):
        first = acme.run("conformance-noop")["runId"]
        receiver.until_ended(first)

    with receiving() as control, subscribed(acme, control.url):
        control.until_ended(acme.run("conformance-noop")["runId"])

    assert {request.json["runId"] for request in receiver.requests} == {first}


def test_the_old_secret_goes_on_signing_for_a_while_with_the_new_one_beside_it(
    acme: Wire, receiver: Receiver
) -> None:
    with subscribed(acme, receiver.url, "run.completed") as made:
        path = f"/v1/webhooks/{made['webhookId']}:rotate"
        fresh = acme.post(path).json()["secret"]
        receiver.until_ended(acme.run("conformance-noop")["runId"])
        last = acme.post(f"{path}?graceSeconds=0").json()["secret"]
        receiver.until_ended(acme.run("conformance-noop")["runId"])

    during, after = receiver.requests
    assert during.headers["x-openwop-signature"] == signature(made["secret"], during)
    assert during.headers["x-openwop-signature-next"] == signature(fresh, during)
    assert during.headers["openwop-signature-next"] == signature(fresh, during)
    assert after.headers["x-openwop-signature"] == signature(last, after)
    assert "x-openwop-signature-next" not in after.headers


# Receivers that are not well


def failing(times: int, fail: Callable[[Handler], None]) -> Callable[[Received, Handler], None]:
    """Fail that many requests of each run, then take everything."""
    failures: defaultdict[str, int] = defaultdict(int)

    def behave(request: Received, handler: Handler) -> None:
        run_id = str(request.json["runId"])
        failures[run_id] += 1
        if failures[run_id] <= times:
            fail(handler)
        else:
            take(request, handler)

    return behave


def reset(handler: Handler) -> None:
    """Break the connection off without an answer."""
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    handler.connection.close()


def garble(handler: Handler) -> None:
    handler.wfile.write(b"this is not HTTP\r\n\r\n")
    handler.close_connection = True


def refuse(status: int) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(status, b"no")


@pytest.mark.parametrize(
    "fail",
    [refuse(500), refuse(503), refuse(404), refuse(410), refuse(302), reset, garble],
    ids=["500", "503", "404", "410", "302", "reset", "garbage"],
)
def test_what_a_receiver_does_not_take_comes_again_and_in_order(
    acme: Wire, receiver: Receiver, fail: Callable[[Handler], None]
) -> None:
    receiver.behave = failing(2, fail)

    with subscribed(acme, receiver.url) as made:
        runs = [acme.create("conformance-multi-node") for _ in range(3)]
        for run_id in runs:
            acme.finished(run_id)
        receiver.until_ended(*runs)
        eventually(lambda: state_of(acme, made["webhookId"])["consecutiveFailures"] == 0)

    for run_id in runs:
        assert taken(receiver.requests, run_id) == list(range(len(acme.log(run_id))))


def test_a_receiver_that_answers_slowly_still_gets_everything_in_order(
    acme: Wire, receiver: Receiver
) -> None:
    def dawdle(request: Received, handler: Handler) -> None:
        time.sleep(0.15)
        take(request, handler)

    receiver.behave = dawdle
    with subscribed(acme, receiver.url):
        run_id = acme.run("conformance-multi-node")["runId"]
        receiver.until_ended(run_id)

    came = [request.json["sequence"] for request in receiver.requests]
    assert came == list(range(len(acme.log(run_id))))


def test_a_receiver_that_drips_its_answer_has_taken_the_event(
    acme: Wire, receiver: Receiver
) -> None:
    def drip(request: Received, handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(1)
        handler.close_connection = True

    receiver.behave = drip
    with subscribed(acme, receiver.url, "run.completed") as made:
        run_id = acme.run("conformance-noop")["runId"]
        receiver.until_ended(run_id)
        receiver.until_ended(acme.run("conformance-noop")["runId"])
        assert state_of(acme, made["webhookId"])["consecutiveFailures"] == 0

    assert len(receiver.requests) == 2


def test_a_receiver_that_hangs_keeps_no_other_waiting(acme: Wire, receiver: Receiver) -> None:
    released = threading.Event()

    def hang(request: Received, handler: Handler) -> None:
        released.wait(DEADLINE_SECONDS)
        take(request, handler)

    with receiving(hang) as hanging, subscribed(acme, hanging.url), subscribed(acme, receiver.url):
        began = time.monotonic()
        runs = [acme.run("conformance-noop")["runId"] for _ in range(20)]
        receiver.until_ended(*runs)
        took = time.monotonic() - began
        released.set()

    assert took < 4


def test_a_receiver_that_hangs_is_given_up_after_five_seconds_and_tried_again(
    acme: Wire, receiver: Receiver
) -> None:
    hung: list[float] = []
    released = threading.Event()

    def hang_once(request: Received, handler: Handler) -> None:
        hung.append(time.monotonic())
        if len(hung) == 1:
            released.wait(DEADLINE_SECONDS)
        take(request, handler)

    receiver.behave = hang_once
    with subscribed(acme, receiver.url, "run.completed"):
        acme.run("conformance-noop")
        receiver.until(lambda came: len(came) == 2)
        released.set()

    assert 4.5 < hung[1] - hung[0] < 8


def test_a_redirect_is_a_failure_and_where_it_leads_is_never_called(
    acme: Wire, receiver: Receiver
) -> None:
    with receiving() as elsewhere:
        receiver.behave = failing(
            3, lambda handler: handler.answer(307, Location=f"{elsewhere.url}/inside")
        )
        with subscribed(acme, receiver.url, "run.completed"):
            run_id = acme.run("conformance-noop")["runId"]
            receiver.until(lambda came: len(came) == 4)

        assert elsewhere.requests == []
    assert taken(receiver.requests, run_id) == [len(acme.log(run_id)) - 1]


# Giving up


@pytest.fixture
def curt_host(new_host: Callable[..., ServedHost]) -> ServedHost:
    """A host that tries an event twice."""
    curt = {"WOPR_WEBHOOK_ATTEMPTS": "2", "WOPR_WEBHOOK_RETRY_MS": "1"}
    return new_host("--conformance", **(QUICK | curt))


def test_what_is_given_up_is_listed_and_can_be_delivered_later(
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


def test_four_failures_in_a_row_open_the_circuit_and_one_that_is_taken_closes_it(
    new_host: Callable[..., ServedHost], connect: Connect, receiver: Receiver
) -> None:
    host = new_host("--conformance", **(QUICK | {"WOPR_WEBHOOK_OPEN_SECONDS": "2"}))
    acme = connect(ACME, host)
    receiver.behave = lambda request, handler: handler.answer(500)
    with subscribed(acme, receiver.url) as made:
        runs = [acme.run("conformance-noop")["runId"] for _ in range(3)]
        eventually(lambda: state_of(acme, made["webhookId"])["state"] == "open")
        opened = state_of(acme, made["webhookId"])
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


# What survives


def test_what_was_not_delivered_before_a_restart_is_delivered_after_it(
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


def test_an_event_of_every_kind_of_payload_is_signed_over_its_very_bytes(
    acme: Wire, receiver: Receiver
) -> None:
    odd = 'ünïcode "quotes" \\ \u2028 \U0001f600 </script>'
    definition = workflow(
        [node("set", "core.setVariable", config={"name": "x", "value": {"text": odd, "n": 1.5}})],
        variables=[{"name": "x", "type": "object"}],
    )
    acme.register(definition)
    with subscribed(acme, receiver.url) as made:
        run_id = acme.run(definition["id"])["runId"]
        requests = receiver.until_ended(run_id)

    assert all(
        request.headers["x-openwop-signature"] == signature(made["secret"], request)
        for request in requests
    )
    assert [request.json["event"] for request in requests] == acme.log(run_id)
