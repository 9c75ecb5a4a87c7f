"""The bytes of request bodies are counted on every route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, ServedHost, served
from tests.support.interrupts import external, token_of, waiting_run
from tests.support.sockets import RawConnection, request

Connect = Callable[..., Wire]
MIB = 1024 * 1024
FORM = "Content-Type: application/x-www-form-urlencoded"
# One tenant can have 4 MiB: two of these, and no third one.
HALF = b" " * (2 * MIB - 64 * 1024)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with a low limit for the bytes of bodies."""
    data_dir = tmp_path_factory.mktemp("narrow")
    # A connection whose body was refused is closed after the grace period. Bodies that are half
    # sent have minutes, for their bytes at the minimum rate.
    variables = {"WOPR_MAX_INCOMING_BYTES": str(16 * MIB), "WOPR_BODY_GRACE_SECONDS": "2"}
    with served(data_dir, **variables) as running:
        yield running


def _to_run(host: ServedHost, connect: Connect) -> str:
    return _head("/v1/runs", key=ACME)


def _to_mcp(host: ServedHost, connect: Connect) -> str:
    return _head("/mcp", key=ACME)


def _to_form(host: ServedHost, connect: Connect) -> str:
    with Person(host.url) as person:
        person.sign_in(ACME)
        return _head("/inbox/batch", f"Cookie: wopr_session={person.cookie}", FORM)


def _to_token(host: ServedHost, connect: Connect) -> str:
    wire = connect(ACME, host)
    return _head(f"/v1/interrupts/{token_of(wire, waiting_run(wire, external()))}")


def _head(path: str, *headers: str, key: str | None = None) -> str:
    length = f"Content-Length: {4 * MIB}"
    return request(path, length, *headers, method="POST", key=key)


@pytest.mark.parametrize("head_of", [_to_run, _to_mcp, _to_form, _to_token])
def test_incomplete_bodies_of_a_client_use_bounded_memory(
    narrow: ServedHost, connect: Connect, head_of: Callable[[ServedHost, Connect], str]
) -> None:
    head = head_of(narrow, connect)

    with ExitStack() as stack:
        senders = [stack.enter_context(RawConnection(narrow)) for _ in range(3)]
        for sender in senders:
            sender.send(head, HALF)
        eventually(lambda: any(not sender.is_open() for sender in senders))
        [refused] = [sender for sender in senders if not sender.is_open()]
        other = connect(GLOBEX, narrow).post("/v1/runs", {"workflowId": "hello"})
        answer = refused.answer()

    assert answer.status == 503
    assert b"large request bodies" in answer.body
    assert "retry-after" in answer.headers
    assert other.status_code == 201


@pytest.mark.parametrize("path", ["/theme", "/sign-out", "/no-such-page"])
def test_an_ordinary_form_can_have_64_kib(host: ServedHost, path: str) -> None:
    with Person(host.url) as person:
        person.sign_in(ACME)
        form = {"csrf": person.token(), "next": "x" * 65 * 1024}
        answer = person.http.post(path, data=form, headers={"Accept": "text/html"})

    assert answer.status_code == 413
    assert "65536 bytes" in answer.text


def test_a_form_with_the_inputs_of_a_workflow_can_be_as_large_as_a_request(
    host: ServedHost,
) -> None:
    with Person(host.url) as person:
        person.sign_in(ACME)
        answer = person.post("/workflows/hello/start", name="x" * 128 * 1024)

    assert answer.status_code == 303
