from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from tests.fault.checker import Stored
from tests.fault.cluster import stream_text
from tests.fault.load import Ledger, Load
from tests.fault.receiver import receiving
from tests.support.definitions import delay, node, workflow
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.timeout(600)

NewHost = Callable[..., FragileHost]

DRAIN_SECONDS = 3
# The time that a process needs to end on a busy machine, beside that of its requests.
SLACK_SECONDS = 25
# A host that waits for something stops after more than this time.
LONG_SECONDS = 60


def talking(host: FragileHost, words: int, milliseconds: int) -> str:
    """Start a run that streams."""
    run_id = stream_text(host, words, milliseconds)
    host.wire.events_until(run_id, "output.chunk")
    return run_id


@contextmanager
def under_way(host: FragileHost, path: str, **params: str) -> Iterator[list[httpx.Response]]:
    """Make a slow request in a thread; the list gets its response, if one arrives."""
    answers: list[httpx.Response] = []
    sent = threading.Event()

    def ask() -> None:
        headers = {"Authorization": f"Bearer {ACME}"}
        with (
            httpx.Client(
                base_url=host.url, headers=headers, timeout=LONG_SECONDS, trust_env=False
            ) as http,
            http.stream("GET", path, params=params) as response,
        ):
            sent.set()
            response.read()
            answers.append(response)

    def ask_in_vain() -> None:
        try:
            ask()
        except httpx.TransportError:
            sent.set()

    thread = threading.Thread(target=ask_in_vain, daemon=True)
    thread.start()
    yield answers
    thread.join(2 * LONG_SECONDS)
    assert not thread.is_alive()


def stop(host: FragileHost) -> None:
    """Stop the host and check that it stops in time without errors."""
    host.ask_to_stop()
    assert host.wait_for_exit(DRAIN_SECONDS + SLACK_SECONDS) == 0, host.log()


def test_a_stopped_host_leaves_everything_to_the_next_one(new_host: NewHost) -> None:
    host = new_host(WOPR_DRAIN_SECONDS=str(DRAIN_SECONDS), WOPR_ALLOW_PRIVATE_DESTINATIONS="1")
    with receiving() as receiver:
        receiver.may_answer.clear()
        config = {"url": receiver.url, "method": "POST", "timeoutMs": LONG_SECONDS * 1000}
        posting = workflow([node("effect", "wopr.http.request", config=config)])
        wire = host.wire
        runs = [
            talking(host, 100, 120),
            wire.create(wire.register(workflow([delay("wait", 2000), node("after")]))),
            wire.create(wire.register(posting)),
            wire.create("conformance-subworkflow-parent"),
        ]
        eventually(lambda: len(receiver.keys) == 1)

        with under_way(host, f"/v1/runs/{runs[0]}/events", streamMode="debug") as answers:
            eventually(lambda: len(wire.log(runs[0])) > 4)
            eventually(lambda: "wopr_stream_readers 1.0" in wire.metrics())
            stop(host)

        assert answers[0].status_code == 200
        assert answers[0].content.endswith(b"\n\n")
        host.start()
        receiver.may_answer.set()
        assert [host.wire.finished(run_id)["status"] for run_id in runs] == ["completed"] * 4


def test_a_waiting_poll_does_not_delay_shutdown(new_host: NewHost) -> None:
    host = new_host(WOPR_DRAIN_SECONDS=str(DRAIN_SECONDS))
    run_id = host.wire.create("conformance-cancellable", {"delayMs": 60_000})
    last = str(len(host.wire.log(run_id)) - 1)

    path = f"/v1/runs/{run_id}/events/poll"
    with under_way(host, path, lastSequence=last, timeout=str(LONG_SECONDS)) as answers:
        eventually(lambda: reader_count(host) == 1)
        stop(host)

    assert answers[0].json()["events"] == []
    host.start()
    assert host.wire.snapshot(run_id)["status"] == "running"


def reader_count(host: FragileHost) -> int:
    lines = host.wire.metrics().splitlines()
    [count] = [line for line in lines if line.startswith("wopr_stream_readers ")]
    return int(float(count.split()[1]))


def half_a_request(host: FragileHost, body: bytes) -> socket.socket:
    """Open a connection and send a request to create a run without its last byte.

    The host has accepted the connection when this returns: it accepts in order, and it has
    answered a later one. Closing the listening socket resets connections that were not yet
    accepted.
    """
    connection = socket.create_connection(("127.0.0.1", host.port), timeout=LONG_SECONDS)
    head = (
        "POST /v1/runs HTTP/1.1\r\nHost: wopr\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {ACME}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[:-1])
    assert not is_refused(host)
    return connection


def whole_answer(connection: socket.socket) -> str:
    """Read until the peer closes: head and body may arrive in two pieces."""
    pieces: list[bytes] = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces).decode()


def is_refused(host: FragileHost) -> bool:
    """Return whether a new client is refused."""
    try:
        with httpx.Client(base_url=host.url, timeout=LONG_SECONDS, trust_env=False) as http:
            return http.get("/readyz").status_code == 503
    except httpx.TransportError:
        return True


def test_a_started_request_is_completed_while_new_clients_are_refused(
    new_host: NewHost,
) -> None:
    host = new_host(WOPR_DRAIN_SECONDS=str(LONG_SECONDS))
    body = json.dumps({"workflowId": "conformance-noop"}).encode()
    with half_a_request(host, body) as connection:
        host.ask_to_stop()
        eventually(lambda: is_refused(host))

        connection.sendall(body[-1:])
        answer = whole_answer(connection)

        assert answer.startswith("HTTP/1.1 201")
    assert host.wait_for_exit() == 0
    accepted: JsonObject = json.loads(answer.partition("\r\n\r\n")[2])
    host.start()
    assert host.wire.snapshot(accepted["runId"])["status"] == "completed"


def test_a_host_that_is_stopped_twice_stops_once(new_host: NewHost) -> None:
    host = new_host(WOPR_DRAIN_SECONDS=str(LONG_SECONDS))
    run_id = talking(host, 40, 50)

    with half_a_request(host, b"{}") as connection:
        host.ask_to_stop()
        eventually(lambda: is_refused(host))
        host.ask_to_stop()
        connection.sendall(b"}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")

    assert host.wait_for_exit() == 0, host.log()
    host.start()
    assert host.wire.finished(run_id)["status"] == "completed"


@pytest.mark.anyio
async def test_everything_that_a_stopping_host_acknowledges_is_stored(tmp_path: Path) -> None:
    host = FragileHost(tmp_path / "host", ("--conformance",))
    ledger = Ledger()

    for seed in range(3):
        await anyio.to_thread.run_sync(host.start)
        load = Load(host.url, ledger, random.Random(seed))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            with anyio.move_on_after(30):
                await load.until_noted(60)
            host.ask_to_stop()
            assert await anyio.to_thread.run_sync(host.wait_for_exit) == 0
            tasks.cancel_scope.cancel()

    host.check()
    runs = Stored(host.database).runs
    assert ledger.acknowledged
    assert ledger.acknowledged.keys() <= runs.keys()
    for (run_id, sequence), body in ledger.events.items():
        assert runs[run_id].log[sequence].body == body
