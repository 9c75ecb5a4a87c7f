from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.host import ACME, ServedHost, served
from tests.wire.refusals import JSON, refusal

SMALL = 4096


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host that accepts small bodies only."""
    data_dir = tmp_path_factory.mktemp("small")
    with served(data_dir, "--conformance", WOPR_MAX_BODY_BYTES=str(SMALL)) as running:
        yield running


def _body(size: int) -> bytes:
    """Return a create request of exactly this many bytes."""
    empty = len(json.dumps({"workflowId": "conformance-noop", "inputs": {"pad": ""}}))
    padded = {"workflowId": "conformance-noop", "inputs": {"pad": "x" * (size - empty)}}
    return json.dumps(padded).encode()


def test_a_body_at_the_limit_is_accepted_and_one_byte_more_is_not(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)

    fits = wire.post("/v1/runs", content=_body(SMALL), headers=JSON)
    over = wire.post("/v1/runs", content=_body(SMALL + 1), headers=JSON)

    assert fits.status_code == 201
    assert refusal(over, 413)["error"] == "payload_too_large"
    assert over.json()["details"] == {"field": "body", "limit": SMALL}
    advertised = wire.document("/.well-known/openwop")["limits"]["maxRequestBodyBytes"]
    assert advertised == SMALL


def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_large(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)

    def chunks() -> Iterator[bytes]:
        for start in range(0, 3 * SMALL, 512):
            yield _body(3 * SMALL)[start : start + 512]

    response = wire.post("/v1/runs", content=chunks(), headers=JSON)

    assert response.request.headers["transfer-encoding"] == "chunked"
    assert refusal(response, 413)["error"] == "payload_too_large"


def test_a_body_in_pieces_is_read_completely(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    whole = _body(SMALL)

    def chunks() -> Iterator[bytes]:
        yield from (whole[start : start + 7] for start in range(0, len(whole), 7))

    response = connect(ACME, small).post("/v1/runs", content=chunks(), headers=JSON)

    assert response.status_code == 201


def test_a_content_length_above_the_limit_is_refused_before_the_body_arrives(
    small: ServedHost,
) -> None:
    head = _head(small, f"Content-Length: {10**12}")

    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as connection:
        connection.sendall(head)
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 413")


def _head(host: ServedHost, *lines: str) -> bytes:
    fixed = [
        "POST /v1/runs HTTP/1.1",
        f"Host: 127.0.0.1:{host.port}",
        f"Authorization: Bearer {ACME}",
        "Content-Type: application/json",
    ]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def _runs(wire: Wire) -> list[str]:
    return [item["runId"] for item in wire.document("/v1/runs")["items"]]


@pytest.mark.parametrize("framing", ["Content-Length: 500", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("key", [None, "Idempotency-Key: truncated"])
def test_an_interrupted_upload_leaves_nothing_behind(
    small: ServedHost, connect: Callable[..., Wire], framing: str, key: str | None
) -> None:
    wire = connect(ACME, small)
    before = _runs(wire)
    part = b'{"workflowId": "conformance-noop"'
    sent = part if "Length" in framing else b"%x\r\n%b\r\n" % (len(part), part)

    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as connection:
        connection.sendall(_head(small, framing, *([] if key is None else [key])) + sent)

    assert _runs(wire) == before
    again = wire.post(
        "/v1/runs", {"workflowId": "conformance-noop"}, headers={"Idempotency-Key": fresh()}
    )
    assert again.status_code == 201
    assert "Traceback" not in small.log()


def test_a_disconnecting_reader_affects_no_other(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)
    run_id = wire.create("conformance-cancellable")
    head = (
        f"GET /v1/runs/{run_id}/events?streamMode=debug HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {ACME}\r\n\r\n"
    )

    for _ in range(5):
        with socket.create_connection(("127.0.0.1", small.port), timeout=60) as connection:
            connection.sendall(head.encode())
            connection.recv(100)

    wire.post(f"/v1/runs/{run_id}/cancel")
    assert wire.finished(run_id)["status"] == "cancelled"
    assert "Traceback" not in small.log()
