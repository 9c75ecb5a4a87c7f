"""Finding 4: a client without a key must not block clients that have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.attack.attacked_host import MALLORY, AttackedHost, HonestClient, attacked
from tests.support.sockets import RawConnection, request

KIB = 1024
HALF_HEAD = "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "
# Small limits, so that the attack is small; the same code works with the defaults.
LIMITS = {"WOPR_MAX_UNAUTHENTICATED_CONNECTIONS": "200", "WOPR_MAX_CONNECTIONS": "400"}
MAX_GROWTH_MIB = 100.0
PAUSE_SECONDS = 0.05


@contextmanager
def _held(host: AttackedHost, sent: bytes, count: int) -> Iterator[list[RawConnection]]:
    """Open connections with incomplete requests."""
    with ExitStack() as stack:
        yield [stack.enter_context(RawConnection(host)).send(sent) for _ in range(count)]


HALF_SENT: dict[str, bytes] = {
    "nothing": b"",
    "half a head": HALF_HEAD.encode(),
    "60 KiB of a head": HALF_HEAD.encode() + b"x" * 60 * KIB,
    "half a sign-in form": request("/sign-in", "Content-Length: 800", method="POST").encode(),
    "half a body": request("/v1/runs", "Content-Length: 800", method="POST").encode(),
    "half an MCP call": request("/mcp", "Content-Length: 800", method="POST").encode(),
}


@pytest.mark.parametrize("sent", HALF_SENT.values(), ids=HALF_SENT)
def test_incomplete_requests_do_not_delay_other_clients(tmp_path: Path, sent: bytes) -> None:
    with attacked(tmp_path, **LIMITS, WOPR_MAX_IN_FLIGHT="50") as host:
        with HonestClient(host) as honest, _held(host, sent, 600) as held:
            honest.wait_for_round()
            told = held[0].answer() if sent else None

        assert honest.growth_mib < MAX_GROWTH_MIB
        if told is not None:
            assert told.status in (401, 503)
            assert told.json["message"]

        host.kill_and_recover()


def test_incomplete_bodies_with_a_valid_key_do_not_delay_other_clients(tmp_path: Path) -> None:
    head = request("/v1/runs", "Content-Length: 800", method="POST", key=MALLORY)
    variables = {"WOPR_MAX_IN_FLIGHT": "50", "WOPR_BODY_GRACE_SECONDS": "2"}
    with attacked(tmp_path, **variables) as host:
        with HonestClient(host) as honest, _held(host, head.encode(), 500) as held:
            honest.wait_for_round()
            told = held[0].answer()

        assert told.status == 408
        assert told.json["error"] == "request_timeout"
        assert honest.growth_mib < MAX_GROWTH_MIB


def test_an_address_with_too_many_connections_is_refused_with_429(tmp_path: Path) -> None:
    variables = LIMITS | {"WOPR_MAX_CONNECTIONS_PER_ADDRESS": "100"}
    with attacked(tmp_path, **variables) as host:
        with HonestClient(host) as honest, _held(host, HALF_HEAD.encode(), 101) as held:
            honest.wait_for_round()
            told = held[-1].answer()

        assert told.status == 429
        assert told.json["error"] == "rate_limited"
        assert int(told.headers["retry-after"]) >= 1


def _endless_head(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(HALF_HEAD, *(b"x" * 64 * KIB for _ in range(64)))


def _endless_body(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        head = request("/sign-in", "Transfer-Encoding: chunked", method="POST")
        connection.send(head, *(b"10000\r\n" + b"x" * 64 * KIB + b"\r\n" for _ in range(64)))


def _many_headers(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(request("/healthz", *["a:"] * 16_000) * 20)


def _small_chunks(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        head = request("/v1/runs", "Transfer-Encoding: chunked", method="POST")
        connection.send(head, *(b"1\r\nx\r\n" * 64 * KIB for _ in range(16)))


def _endless_pipeline(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        connection.send(request("/readyz") * 5000)


def _churn(host: AttackedHost) -> None:
    with RawConnection(host) as connection:
        connection.send("GET")


ATTACKS = [_endless_head, _endless_body, _many_headers, _small_chunks, _endless_pipeline, _churn]


@pytest.mark.parametrize("attack", ATTACKS)
def test_clients_that_send_continuously_do_not_delay_others(
    tmp_path: Path, attack: Callable[[AttackedHost], None]
) -> None:
    is_over = Event()

    def repeat(host: AttackedHost) -> None:
        while not is_over.wait(PAUSE_SECONDS):
            attack(host)

    with attacked(tmp_path, **LIMITS) as host:
        threads = [Thread(target=repeat, args=[host], daemon=True) for _ in range(3)]
        with HonestClient(host) as honest:
            for thread in threads:
                thread.start()
            honest.wait_for_round()
            honest.wait_for_round()
            is_over.set()
            for thread in threads:
                thread.join()

        assert honest.growth_mib < MAX_GROWTH_MIB
