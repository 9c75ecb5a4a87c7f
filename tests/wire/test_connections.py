"""Limits of connections: incomplete requests, and the number of open connections."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, ServedHost, served
from tests.support.sockets import RawConnection, request, send_until_closed

KIB = 1024
PATHS = ["/healthz", "/metrics", "/mcp", "/sign-in", "/v1/runs", "/nowhere"]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with short deadlines."""
    with served(
        tmp_path_factory.mktemp("hasty"),
        WOPR_HEADER_SECONDS="1",
        WOPR_BODY_GRACE_SECONDS="1",
        WOPR_MIN_BODY_RATE="1000000",
        WOPR_KEEP_ALIVE_SECONDS="1",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with few connections."""
    with served(
        tmp_path_factory.mktemp("small"),
        WOPR_MAX_CONNECTIONS="16",
        WOPR_MAX_CONNECTIONS_PER_ADDRESS="8",
        WOPR_MAX_UNAUTHENTICATED_CONNECTIONS="6",
    ) as running:
        yield running


# The head of a request


@pytest.mark.parametrize("path", PATHS)
def test_a_head_over_64_kib_is_refused_with_the_limit(host: ServedHost, path: str) -> None:
    with RawConnection(host) as connection:
        answer = connection.send(request(path, f"X-Filler: {'x' * 65 * KIB}")).answer()

    assert answer.status == 431
    assert answer.json["error"] == "header_too_large"
    assert answer.json["details"] == {"limit": 64 * KIB}
    assert "65536 bytes" in answer.json["message"]
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("start", "part"),
    [
        ("GET /healthz HTTP/1.1\r\nX-Endless: ", b"x" * 4 * KIB),
        ("GET /healthz HTTP/1.1\r\n", b"X-Another: x\r\n" * 300),
        ("GET /healthz?", b"x" * 4 * KIB),
        ("", b"\r\n" * 2 * KIB),
        ("POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x" * 64 * KIB),
        ("POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 64 * KIB),
    ],
    ids=["one header", "many headers", "the path", "blank lines", "trailers", "a chunk extension"],
)
def test_an_endless_head_is_rejected(host: ServedHost, start: str, part: bytes) -> None:
    with RawConnection(host) as connection:
        connection.send(start)

        assert send_until_closed(connection, lambda _: part, most=10_000)


@pytest.mark.parametrize("key", [ACME, None])
def test_a_request_with_too_many_headers_is_refused_with_the_limit(
    host: ServedHost, key: str | None
) -> None:
    with RawConnection(host) as connection:
        answer = connection.send(request("/v1/runs", *["a:"] * 257, key=key)).answer()

    assert answer.status == 431
    assert answer.json["error"] == "header_too_large"
    assert answer.json["details"] == {"limit": 256}


def test_a_body_of_too_many_small_chunks_is_rejected(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        connection.send("POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")

        assert send_until_closed(connection, lambda _: b"1\r\nx\r\n" * KIB, most=10_000)


def test_a_body_of_some_small_chunks_is_accepted(host: ServedHost) -> None:
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"workflowId":"hello"}') + b"0\r\n\r\n"
    head = request(
        "/v1/runs", "Transfer-Encoding: chunked", "Connection: close", method="POST", key=ACME
    )

    with RawConnection(host) as connection:
        assert connection.send(head, body).answer().status == 201


def test_a_head_within_the_limit_is_served(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(request("/healthz", f"X-Filler: {'x' * 60 * KIB}", "Connection: close"))

        assert connection.answer().status == 200


@pytest.mark.parametrize("sent", ["GET /heal", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_an_incomplete_head_is_answered_408_after_the_deadline(
    hasty: ServedHost, sent: str
) -> None:
    with RawConnection(hasty) as connection:
        answer = connection.send(sent).answer()

    assert answer.status == 408
    assert answer.json["error"] == "request_timeout"
    assert "1 s" in answer.json["message"]


def test_slow_bytes_do_not_extend_the_deadline(hasty: ServedHost) -> None:
    with RawConnection(hasty) as connection:
        connection.send("GET /healthz HTTP/1.1\r\n")
        connection.socket.settimeout(0.2)
        answered = b""
        for number in range(300):
            connection.send(f"X-{number}: x\r\n")
            try:
                answered = connection.socket.recv(100)
                break
            except TimeoutError:
                continue

    assert answered.startswith(b"HTTP/1.1 408 ")


def test_a_connection_without_a_request_is_closed(hasty: ServedHost) -> None:
    with RawConnection(hasty) as connection:
        assert connection.read_to_end() == b""


def test_a_connection_without_a_further_request_is_closed(hasty: ServedHost) -> None:
    with RawConnection(hasty) as connection:
        answer = connection.send(request("/healthz")).answer()

    assert answer.status == 200


# The body


@pytest.mark.parametrize("framing", ["Content-Length: 60", "Transfer-Encoding: chunked"])
def test_an_incomplete_body_is_answered_408_after_the_deadline(
    hasty: ServedHost, framing: str
) -> None:
    with RawConnection(hasty) as connection:
        head = request("/v1/runs", framing, method="POST", key=ACME)
        answer = connection.send(head, b"5\r\n{    \r\n").answer()

    assert answer.status == 408
    assert answer.json["error"] == "request_timeout"
    assert "1000000 bytes per second" in answer.json["message"]


def test_an_incomplete_sign_in_form_is_answered_408(hasty: ServedHost) -> None:
    with RawConnection(hasty) as connection:
        head = request("/sign-in", "Content-Length: 60", method="POST")
        answer = connection.send(head, b"key=").answer()

    assert answer.status == 408


def test_a_refused_body_is_not_read_without_limit(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(request("/v1/runs", "Content-Length: 90000000000", method="POST"))

        assert send_until_closed(connection, lambda _: b"x" * 256 * KIB, most=4000)


def test_a_slow_body_above_the_minimum_rate_is_accepted(
    new_host: Callable[..., ServedHost],
) -> None:
    host = new_host(WOPR_BODY_GRACE_SECONDS="1", WOPR_MIN_BODY_RATE="1")
    body = b'{"workflowId": "hello"}'
    head = request("/v1/runs", f"Content-Length: {len(body)}", method="POST", key=ACME)

    with RawConnection(host) as connection:
        connection.send(head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), body[:10])
        with Wire(host.url, ACME) as other:
            eventually(lambda: other.get("/healthz").status_code == 200)
        answer = connection.send(body[10:]).answer()

    assert answer.status == 201


def test_a_sign_in_form_can_have_8_kib(connect: Callable[..., Wire]) -> None:
    form = {"key": "x" * 9000, "next": "/"}

    response = connect(None).http.post("/sign-in", data=form)

    assert response.status_code == 413
    assert "8192 bytes" in response.text


# Requests in progress


def test_requests_without_their_body_do_not_count_as_requests_in_progress(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_MAX_IN_FLIGHT="2")
    head = request("/v1/runs", "Content-Length: 60", method="POST", key=ACME)

    with ExitStack() as stack:
        half_sent = [stack.enter_context(RawConnection(host)).send(head) for _ in range(5)]
        half_sent += [
            stack.enter_context(RawConnection(host)).send(
                request("/sign-in", "Content-Length: 60", method="POST")
            )
            for _ in range(5)
        ]
        created = connect(ACME, host).post("/v1/runs", {"workflowId": "hello"})

        assert created.status_code == 201
        assert all(connection.is_open() for connection in half_sent)


def test_too_many_pipelined_requests_end_the_connection(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(request("/healthz") * 10_000)
        read = connection.read_to_end()

    assert read.count(b"HTTP/1.1 200 OK") < 10_000


def test_some_pipelined_requests_are_answered_in_order(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        paths = ("/healthz", "/nowhere", "/readyz")
        connection.send(*(request(path) for path in paths))
        connection.send(request("/v1/runs", "Connection: close"))
        read = connection.read_to_end()

    statuses = [part.split(b" ")[0] for part in read.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200", b"401"]


# The number of connections


def test_an_address_with_too_many_connections_is_refused(small: ServedHost) -> None:
    with ExitStack() as stack:
        keep = request("/v1/runs", key=ACME)
        for _ in range(8):
            connection = stack.enter_context(RawConnection(small)).send(keep)
            assert connection.socket.recv(100).startswith(b"HTTP/1.1 200")
        answer = stack.enter_context(RawConnection(small)).answer()
        other = stack.enter_context(RawConnection(small, "127.0.0.2"))
        other.send(request("/healthz", "Connection: close"))

        assert answer.status == 429
        assert answer.json["error"] == "rate_limited"
        assert "8 connections" in answer.json["message"]
        assert answer.json["details"]["scope"] == "address"
        assert int(answer.headers["retry-after"]) >= 1
        assert other.answer().status == 200


def test_waiting_connections_are_closed_for_new_ones(small: ServedHost) -> None:
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(RawConnection(small)).send("GET /healthz HT") for _ in range(6)
        ]
        new = stack.enter_context(RawConnection(small, "127.0.0.2"))
        answer = new.send(request("/v1/runs", "Connection: close", key=ACME)).answer()

        assert answer.status == 200
        first = waiting[0].answer()
        assert first.status == 503
        assert "6 connections" in first.json["message"]
        assert int(first.headers["retry-after"]) >= 1


def test_waiting_connections_of_clients_with_a_key_are_closed_when_all_are_in_use(
    small: ServedHost,
) -> None:
    with ExitStack() as stack:
        for number in range(15):
            address = "127.0.0.1" if number < 8 else "127.0.0.3"
            connection = stack.enter_context(RawConnection(small, address))
            connection.send(request("/v1/runs", key=ACME))
            assert connection.socket.recv(100).startswith(b"HTTP/1.1 200")
        new = stack.enter_context(RawConnection(small, "127.0.0.2"))
        new.send(request("/v1/runs", "Connection: close", key=ACME))

        assert new.answer().status == 200


def test_a_host_with_all_connections_in_use_says_so_and_answers_health_checks(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", WOPR_MAX_CONNECTIONS="6")
    run_id = connect(ACME, host).create("conformance-cancellable", {"delayMs": 60_000})
    stream = request(f"/v1/runs/{run_id}/events", key=ACME)

    with ExitStack() as stack:
        for number in range(5):
            address = "127.0.0.1" if number < 2 else "127.0.0.3"
            reader = stack.enter_context(RawConnection(host, address)).send(stream)
            assert reader.socket.recv(15) == b"HTTP/1.1 200 OK"
        new = stack.enter_context(RawConnection(host, "127.0.0.2"))
        answer = new.send(request("/v1/runs", "Connection: close", key=GLOBEX)).answer()
        probe = stack.enter_context(RawConnection(host, "127.0.0.2"))
        health = probe.send(request("/healthz", "Connection: close")).answer()

    assert answer.status == 503
    assert answer.json["error"] == "service_unavailable"
    assert "5 connections with a valid key" in answer.json["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert health.status == 200


def test_an_address_can_use_half_of_the_connections(new_host: Callable[..., ServedHost]) -> None:
    host = new_host(WOPR_MAX_CONNECTIONS="6")

    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(RawConnection(host)).send(request("/healthz"))
            assert connection.socket.recv(15) == b"HTTP/1.1 200 OK"
        answer = stack.enter_context(RawConnection(host)).answer()

    assert answer.status == 429
    assert answer.json["details"]["limit"] == 3


def test_incomplete_bodies_of_a_key_are_closed_for_other_tenants(small: ServedHost) -> None:
    # The host requests the body once it knows the key.
    headers = ("Content-Length: 60", "Expect: 100-continue")
    head = request("/v1/runs", *headers, method="POST", key=ACME)

    with ExitStack() as stack:
        senders: list[RawConnection] = []
        for number in range(16):
            address = "127.0.0.1" if number < 8 else "127.0.0.3"
            senders.append(stack.enter_context(RawConnection(small, address)).send(head))
            assert senders[-1].socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for _ in range(4):
            other = stack.enter_context(RawConnection(small, "127.0.0.2"))
            other.send(request("/v1/runs", "Connection: close", key=GLOBEX))
            assert other.answer().status == 200

        told = senders[0].answer()
        assert told.status == 503
        assert "15 connections with a valid key" in told.json["message"]


def test_connections_with_unread_responses_are_closed_for_new_ones(small: ServedHost) -> None:
    with Wire(small.url, None) as wire:
        [style] = re.findall(r'href="(/static/[^"]+\.css)"', wire.http.get("/sign-in").text)

    with ExitStack() as stack:
        for _ in range(8):
            deaf = stack.enter_context(RawConnection(small))
            deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * KIB)
            deaf.send(request(style) * 16)
        for _ in range(4):
            other = stack.enter_context(RawConnection(small, "127.0.0.2"))
            other.send(request("/v1/runs", "Connection: close", key=ACME))
            assert other.answer().status == 200


def test_bytes_that_are_not_http_are_answered_400(host: ServedHost) -> None:
    with RawConnection(host) as connection:
        answer = connection.send(f"\x16\x03\x01{fresh()}\r\n\r\n").answer()

    assert answer.status == 400
    assert answer.json["error"] == "validation_error"
    assert "Traceback" not in host.log()


# WebSocket


@pytest.mark.parametrize("path", [*PATHS, "/v1/runs/nowhere/events", "/"])
def test_a_request_for_a_websocket_is_answered_400(host: ServedHost, path: str) -> None:
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )

    with RawConnection(host) as connection:
        answer = connection.send(request(path, *upgrade)).answer()

    assert answer.status == 400
    assert answer.json["error"] == "validation_error"
    assert "text/event-stream" in answer.json["message"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_http_2_upgrade_is_ignored_and_the_request_is_served(host: ServedHost) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")

    with RawConnection(host) as connection:
        answer = connection.send(request("/healthz", *offer)).answer()

    assert answer.status == 200


def test_a_request_with_a_body_and_an_http_2_upgrade_is_refused_by_name(host: ServedHost) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    body = '{"workflowId":"hello"}'
    head = request("/v1/runs", *offer, f"Content-Length: {len(body)}", method="POST", key=ACME)

    with RawConnection(host) as connection:
        answer = connection.send(head, body).answer()

    assert answer.status == 400
    assert answer.json["details"]["field"] == "Upgrade"


# Content types


def test_every_response_forbids_content_sniffing(host: ServedHost) -> None:
    with Wire(host.url, ACME) as wire:
        run_id = wire.create("conformance-noop")
        style = re.findall(r'href="(/static/[^"]+)"', wire.http.get("/sign-in").text)[0]
        answers = [
            *(wire.http.get(path) for path in (*PATHS, style, f"/v1/runs/{run_id}/events")),
            wire.http.post("/healthz"),
            wire.http.post("/v1/runs", content=b"{"),
            wire.http.post("/mcp", json={}),
        ]

    told = {(str(each.url), each.headers.get("x-content-type-options")) for each in answers}
    assert {value for _, value in told} == {"nosniff"}, told


# Clients behind a proxy


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host behind proxies at 127.0.0.2 and in 10.0.0.0/8."""
    with served(
        tmp_path_factory.mktemp("proxied"),
        WOPR_TRUSTED_PROXIES="127.0.0.2, 10.0.0.0/8",
        WOPR_MAX_CONNECTIONS_PER_ADDRESS="2",
    ) as running:
        yield running


def _sign_in(forwarded: str) -> str:
    """Send half a request of a client behind a proxy, which stays in progress."""
    header = f"X-Forwarded-For: {forwarded}"
    return request("/sign-in", header, "Content-Length: 60", method="POST")


@pytest.mark.parametrize(
    "forwarded", ["203.0.113.7", "198.51.100.1, 203.0.113.7", "203.0.113.7, 10.1.2.3"]
)
def test_behind_a_proxy_the_limit_of_an_address_applies_to_the_client(
    proxied: ServedHost, forwarded: str
) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(RawConnection(proxied, "127.0.0.2")).send(_sign_in("203.0.113.7"))
        third = stack.enter_context(RawConnection(proxied, "127.0.0.2"))
        told = third.send(_sign_in(forwarded)).answer()
        other = stack.enter_context(RawConnection(proxied, "127.0.0.2"))
        other.send(request("/healthz", "X-Forwarded-For: 203.0.113.8", "Connection: close"))

        assert told.status == 429
        assert told.json["details"]["scope"] == "address"
        assert other.answer().status == 200


def test_a_forwarded_header_of_a_client_is_ignored(proxied: ServedHost) -> None:
    with ExitStack() as stack:
        for number in range(2):
            connection = stack.enter_context(RawConnection(proxied, "127.0.0.3"))
            connection.send(_sign_in(f"203.0.113.{number}"))
        third = stack.enter_context(RawConnection(proxied, "127.0.0.3"))

        assert third.send(_sign_in("203.0.113.9")).answer().status == 429


def test_addresses_of_one_ipv6_network_share_a_limit(proxied: ServedHost) -> None:
    with ExitStack() as stack:
        for number in range(2):
            connection = stack.enter_context(RawConnection(proxied, "127.0.0.2"))
            connection.send(_sign_in(f"2001:db8:0:1::{number}"))
        third = stack.enter_context(RawConnection(proxied, "127.0.0.2"))
        told = third.send(_sign_in("2001:db8:0:1:ffff::")).answer()
        other = stack.enter_context(RawConnection(proxied, "127.0.0.2"))
        other.send(request("/healthz", "X-Forwarded-For: 2001:db8:0:2::", "Connection: close"))

        assert told.status == 429
        assert other.answer().status == 200
