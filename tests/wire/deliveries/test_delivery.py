"""Deliveries over HTTP: signed, in order, and only to their subscribers."""

from __future__ import annotations

import time

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.forks import forked
from tests.support.host import GLOBEX, ServedHost
from tests.support.webhook_receiver import Receiver, receiving
from tests.wire.conftest import Connect
from tests.wire.deliveries.subscribing import answered, signature, subscribed, taken

pytestmark = pytest.mark.both_stores


@pytest.fixture
def globex(quick_host: ServedHost, connect: Connect) -> Wire:
    return connect(GLOBEX, quick_host)


def test_a_delivery_contains_the_signed_event_and_both_sets_of_headers(
    acme: Wire, receiver: Receiver
) -> None:
    with subscribed(acme, f"{receiver.url}/in?x=1", "run.completed") as made:
        run_id = acme.run("conformance-noop")["runId"]
        [request] = answered(receiver.until_ended(run_id))

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


def test_every_event_is_delivered_once_and_in_log_order(acme: Wire, receiver: Receiver) -> None:
    with subscribed(acme, receiver.url):
        runs = [acme.create("conformance-multi-node") for _ in range(10)]
        requests = answered(receiver.until_ended(*runs))

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
def test_only_the_subscribed_events_are_delivered(
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


def test_a_subscription_with_tags_receives_runs_that_share_one(
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


def test_events_of_a_child_run_are_delivered_too(acme: Wire, receiver: Receiver) -> None:
    with subscribed(acme, receiver.url, "run.*"):
        parent = acme.run("conformance-subworkflow-parent")
        child = parent["childRuns"][0]["runId"]
        requests = receiver.until_ended(parent["runId"], child)

    starts = [r.json["runId"] for r in requests if r.json["type"] == "run.started"]
    assert sorted(starts) == sorted([parent["runId"], child])


def test_a_tenant_s_subscription_never_receives_another_s_runs(
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


def test_a_replay_is_not_delivered_and_a_branch_is(acme: Wire, receiver: Receiver) -> None:
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


def test_nothing_is_sent_to_a_deleted_webhook(acme: Wire, receiver: Receiver) -> None:
    with subscribed(acme, receiver.url):
        first = acme.run("conformance-noop")["runId"]
        receiver.until_ended(first)

    with receiving() as control, subscribed(acme, control.url):
        control.until_ended(acme.run("conformance-noop")["runId"])

    assert {request.json["runId"] for request in receiver.requests} == {first}


def test_the_old_secret_signs_beside_the_new_one_for_a_period(
    acme: Wire, receiver: Receiver
) -> None:
    with subscribed(acme, receiver.url, "run.completed") as made:
        path = f"/v1/webhooks/{made['webhookId']}:rotate"
        fresh = acme.post(path).json()["secret"]
        receiver.until_ended(acme.run("conformance-noop")["runId"])
        last = acme.post(f"{path}?graceSeconds=0").json()["secret"]
        receiver.until_ended(acme.run("conformance-noop")["runId"])

    during, after = answered(receiver.requests)
    assert during.headers["x-openwop-signature"] == signature(made["secret"], during)
    assert during.headers["x-openwop-signature-next"] == signature(fresh, during)
    assert during.headers["openwop-signature-next"] == signature(fresh, during)
    assert after.headers["x-openwop-signature"] == signature(last, after)
    assert "x-openwop-signature-next" not in after.headers


# After changes and restarts


def test_an_event_with_any_payload_is_signed_over_its_exact_bytes(
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
        requests = answered(receiver.until_ended(run_id))

    assert all(
        request.headers["x-openwop-signature"] == signature(made["secret"], request)
        for request in requests
    )
    assert [request.json["event"] for request in requests] == acme.log(run_id)
