"""Deliveries that a receiver does not take at once are repeated, in order."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.wire.client import Wire
from tests.wire.deliveries.subscribing import (
    DEADLINE_SECONDS,
    PATIENCE_SECONDS,
    answered,
    eventually,
    state_of,
    subscribed,
    taken,
)
from tests.wire.receiver import Handler, Received, Receiver, receiving, take
from tests.wire.timing import CHANCES, is_within


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

    came = [request.json["sequence"] for request in answered(receiver.requests)]
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
        eventually(lambda: state_of(acme, made["webhookId"])["consecutiveFailures"] == 0)

    assert len(answered(receiver.requests)) == 2


def _seconds_beside_one_that_hangs(wire: Wire) -> float:
    """How long deliveries to one receiver take while another does not answer."""
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


def test_a_receiver_that_hangs_keeps_no_other_waiting(acme: Wire) -> None:
    assert is_within(PATIENCE_SECONDS - 1, lambda: _seconds_beside_one_that_hangs(acme))


def _seconds_until_tried_again(wire: Wire) -> int:
    """How long the host waits for a receiver that hangs, by its own clock."""
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


def test_a_receiver_that_hangs_is_given_up_after_five_seconds_and_tried_again(acme: Wire) -> None:
    pauses = [_seconds_until_tried_again(acme)]
    # A machine that was busy elsewhere is given another chance; no try may come too soon.
    while pauses[-1] >= PATIENCE_SECONDS + 3 and len(pauses) < CHANCES:
        pauses.append(_seconds_until_tried_again(acme))

    assert min(pauses) >= PATIENCE_SECONDS
    assert pauses[-1] < PATIENCE_SECONDS + 3


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
