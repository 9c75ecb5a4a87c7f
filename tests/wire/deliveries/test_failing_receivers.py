"""Deliveries that a receiver does not accept at once are repeated in order."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.webhook_receiver import Handler, Received, Receiver, receiving, take
from tests.wire.deliveries.subscribing import (
    DEADLINE_SECONDS,
    PATIENCE_SECONDS,
    answered,
    state_of,
    subscribed,
    taken,
)
from tests.wire.timing import CHANCES, is_within

pytestmark = pytest.mark.both_stores
in_memory = pytest.mark.sqlite("how long the host waits for a response is not in the store")


def failing(times: int, fail: Callable[[Handler], None]) -> Callable[[Received, Handler], None]:
    """Fail so many requests of each run, then accept everything."""
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
    """Close the connection without a response."""
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
def test_refused_events_are_delivered_again_in_order(
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


@in_memory
def test_a_slow_receiver_still_gets_everything_in_order(acme: Wire, receiver: Receiver) -> None:
    def dawdle(request: Received, handler: Handler) -> None:
        time.sleep(0.15)
        take(request, handler)

    receiver.behave = dawdle
    with subscribed(acme, receiver.url):
        run_id = acme.run("conformance-multi-node")["runId"]
        receiver.until_ended(run_id)

    came = [request.json["sequence"] for request in answered(receiver.requests)]
    assert came == list(range(len(acme.log(run_id))))


@in_memory
def test_a_receiver_that_sends_its_body_slowly_has_accepted_the_event(
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
        eventually(lambda: state_of(acme, made["webhookId"])["consecutiveFailures"] == 0)

    assert len(answered(receiver.requests)) == 2


def _seconds_beside_one_that_hangs(wire: Wire) -> float:
    """Return how long deliveries to one receiver take while another does not respond."""
    released = threading.Event()

    def hang(request: Received, handler: Handler) -> None:
        released.wait(DEADLINE_SECONDS)
        take(request, handler)

    with (
        receiving(hang) as hanging,
        receiving() as receiver,
        subscribed(wire, hanging.url),
        subscribed(wire, receiver.url),
    ):
        began = time.monotonic()
        receiver.until_ended(*(wire.run("conformance-noop")["runId"] for _ in range(10)))
        took = time.monotonic() - began
        released.set()
    return took


@in_memory
def test_a_hanging_receiver_does_not_delay_others(acme: Wire) -> None:
    assert is_within(PATIENCE_SECONDS - 1, lambda: _seconds_beside_one_that_hangs(acme))


def _seconds_until_tried_again(wire: Wire) -> int:
    """Return how long the host waits for a hanging receiver, by its own clock."""
    released = threading.Event()

    def hang_once(request: Received, handler: Handler) -> None:
        if request is receiver.requests[0]:
            released.wait(DEADLINE_SECONDS)
        take(request, handler)

    with receiving(hang_once) as receiver, subscribed(wire, receiver.url, "run.completed"):
        wire.run("conformance-noop")
        first, second, *_ = receiver.until(lambda came: len(came) >= 2)
        released.set()
    name = "x-openwop-timestamp"
    return int(second.headers[name]) - int(first.headers[name])


@in_memory
def test_a_hanging_receiver_times_out_after_five_seconds_and_is_retried(acme: Wire) -> None:
    pauses = [_seconds_until_tried_again(acme)]
    # A busy machine gets another chance; no attempt may come too early.
    while pauses[-1] >= PATIENCE_SECONDS + 3 and len(pauses) < CHANCES:
        pauses.append(_seconds_until_tried_again(acme))

    assert min(pauses) >= PATIENCE_SECONDS
    assert pauses[-1] < PATIENCE_SECONDS + 3


def test_a_redirect_is_a_failure_and_its_target_is_never_called(
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
