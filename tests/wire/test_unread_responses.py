"""Large responses: they arrive completely, and unread ones use bounded memory."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.raw_stream import RawStream, long_log, long_run

Connect = Callable[..., Wire]
NewHost = Callable[..., ServedHost]


def _large_run(wire: Wire) -> str:
    """Return an ended run whose snapshot has more than 2 MB."""
    return long_run(wire)


def _unread(host: ServedHost, key: str, run_id: str) -> RawStream:
    """Request a run and read only the first bytes of the response."""
    reader = RawStream(host, key, f"/v1/runs/{run_id}", {"Connection": "close"})
    assert reader.receive(12) == b"HTTP/1.1 200"
    return reader


def _received(reader: RawStream) -> int:
    """Return the number of bytes until the host closes the connection."""
    count = 0
    while received := reader.receive(65536):
        count += len(received)
    return count


def test_a_large_response_arrives_completely_at_a_reader_that_pauses(
    host: ServedHost, acme: Wire
) -> None:
    run_id = _large_run(acme)
    expected = acme.get(f"/v1/runs/{run_id}").content

    with _unread(host, ACME, run_id) as reader:
        acme.get("/healthz")
        reader.until_closed()
        body = reader.received.partition(b"\r\n\r\n")[2]

    assert len(expected) > 2_000_000
    assert body == expected


def test_a_second_request_on_a_connection_is_answered_after_a_large_response(acme: Wire) -> None:
    run_id = _large_run(acme)

    answers = [acme.get(f"/v1/runs/{run_id}"), acme.get("/healthz"), acme.get(f"/v1/runs/{run_id}")]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].content == answers[2].content


def test_a_reader_below_the_minimum_rate_is_closed(new_host: NewHost, connect: Connect) -> None:
    host = new_host("--conformance", WOPR_SEND_TIMEOUT_SECONDS="1", WOPR_MIN_READ_RATE="1000000")
    wire = connect(ACME, host)
    run_id = _large_run(wire)

    with _unread(host, ACME, run_id) as reader:
        # At most 80 kB per second, and the response has more than 2 MB.
        count = 0
        while received := reader.receive(8 * 1024):
            count += len(received)
            time.sleep(0.1)

    assert count < 2_000_000


def test_readers_beyond_the_budget_close_the_slowest_reader(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAM_BUFFER_BYTES="5000000")
    wire = connect(ACME, host)
    runs = [_large_run(wire) for _ in range(3)]

    with _unread(host, ACME, runs[0]) as first, _unread(host, ACME, runs[1]) as second:
        # The first has waited for its reader for a second and is closed for the third.
        eventually(lambda: wire.get(f"/v1/runs/{runs[2]}").status_code == 200)

        assert _received(first) < 2_000_000
        assert _received(second) > 2_000_000


def test_a_response_beyond_the_budget_is_refused_with_the_limit(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAM_BUFFER_BYTES="3000000")
    wire = connect(ACME, host)
    run_id, other = _large_run(wire), _large_run(wire)

    with _unread(host, ACME, run_id):
        refused = wire.get(f"/v1/runs/{other}")
        small = wire.get("/v1/runs?limit=1")

    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"] == "service_unavailable"
    assert "max_stream_buffer_bytes" in refused.json()["message"]
    assert refused.json()["details"]["limit"] == 3_000_000
    assert small.status_code == 200


def test_a_tenant_that_does_not_read_does_not_prevent_large_responses_to_others(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAM_BUFFER_BYTES="5000000")
    acme, globex = connect(ACME, host), connect(GLOBEX, host)
    held = [_large_run(acme), _large_run(acme)]
    wanted = _large_run(globex)

    with _unread(host, ACME, held[0]), _unread(host, ACME, held[1]):
        answer = globex.get(f"/v1/runs/{wanted}")

    assert answer.status_code == 200
    assert len(answer.content) > 2_000_000


def test_a_single_response_above_the_budget_is_sent(new_host: NewHost, connect: Connect) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAM_BUFFER_BYTES="100000")
    wire = connect(ACME, host)

    assert len(wire.get(f"/v1/runs/{_large_run(wire)}").content) > 2_000_000


def test_small_responses_that_fit_into_buffers_count_too(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host("--conformance", WOPR_MAX_STREAM_BUFFER_BYTES="400000")
    wire = connect(ACME, host)
    definition, inputs = long_log(nodes=1, kilobytes=30)
    run_id = wire.create(wire.register(definition), inputs)
    wire.finished(run_id)
    asked = b"GET /v1/runs/%b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\n\r\n" % (
        run_id.encode(),
        ACME.encode(),
    )
    clients: list[socket.socket] = []
    try:
        for _ in range(40):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024)
            client.connect(("127.0.0.1", host.port))
            # 40 responses of 120 kB are more than the buffers of the operating system hold.
            client.sendall(asked * 40)
            clients.append(client)
        eventually(lambda: _open_connections(wire) < 20)
    finally:
        for client in clients:
            client.close()

    eventually(lambda: wire.get(f"/v1/runs/{run_id}").status_code == 200)


def _open_connections(wire: Wire) -> int:
    found = re.search(r"^wopr_http_connections (\d+)", wire.metrics(), re.MULTILINE)
    assert found is not None
    return int(found[1])
