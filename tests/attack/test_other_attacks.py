"""Findings 1, 10, 12 and 13: access of one tenant's client beside the main routes."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterator

import pytest

from tests.attack.attacked_host import ALICE, MALLORY, AttackedHost, HonestClient, attacked
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.interrupts import ACCEPT, accepted, gate, waiting_run

MAX_PAGES = 80
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedHost]:
    with attacked(tmp_path_factory.mktemp("small-doors")) as running, HonestClient(running):
        yield running


def test_bodies_with_a_million_lists_are_refused_while_others_are_served(
    host: AttackedHost,
) -> None:
    lists = "[]," * 1_300_000
    body = f'{{"workflowId": "hello", "inputs": {{"name": [{lists}1]}}}}'

    with HonestClient(host) as honest, host.client() as mallory:
        headers = {"Content-Type": "application/json"}
        answers = [mallory.post("/v1/runs", content=body, headers=headers) for _ in range(4)]
        honest.wait_for_round()

    assert {answer.status_code for answer in answers} == {400}
    assert "at most 200000 lists and objects" in answers[0].json()["message"]


def test_no_console_page_shows_a_tenant_the_operator_s_files_and_keys(
    host: AttackedHost,
) -> None:
    with host.client() as mallory:
        mallory.run("hello", {"name": "Mallory"})
    with Person(host.url) as person:
        person.sign_in(MALLORY)
        pages = _crawl(person)

    assert "/settings" in pages
    assert len(pages) > 10
    hidden = (str(host.data_dir), "wopr.db", ALICE, MALLORY, "sqlite:")
    assert {path for path, text in pages.items() if any(each in text for each in hidden)} == set()


def test_a_stream_ends_when_its_key_is_revoked(host: AttackedHost) -> None:
    made = json.loads(
        host.command("keys", "create", "--tenant", "mallory", "--role", "admin", "--json")
    )
    with host.client() as mallory:
        run_id = waiting_run(mallory, gate())

    with (
        Wire(host.url, made["key"]) as holder,
        holder.http.stream("GET", f"/v1/runs/{run_id}/events") as stream,
    ):
        host.command("keys", "revoke", made["keyId"])
        ended = [frame for frame in stream.iter_text() if frame]
        again = holder.get(f"/v1/runs/{run_id}")

    assert ended
    assert (again.status_code, again.json()["error"]) == (401, "key_revoked")


def test_a_vote_cannot_name_its_voter(host: AttackedHost) -> None:
    with host.client() as mallory:
        run_id = waiting_run(mallory, gate(requiredApprovals=2))
        statuses = [
            accepted(mallory, run_id, "gate", ACCEPT | {"voter": voter}) for voter in ("ada", "bob")
        ]

    assert statuses == ["waiting-approval"] * 2


@pytest.mark.parametrize("path", ["/", "/v1/runs", "/mcp", "/healthz", "/nowhere"])
def test_a_request_for_a_websocket_is_refused(host: AttackedHost, path: str) -> None:
    with socket.create_connection(("127.0.0.1", host.port), timeout=20) as connection:
        connection.sendall(UPGRADE.format(path=path).encode())
        status = connection.recv(65536).split(b" ")[1]

    assert status in (b"400", b"426")


def test_mcp_refuses_pages_of_another_origin(host: AttackedHost) -> None:
    opening = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with host.client() as mallory:
        answer = mallory.http.post(
            "/mcp", json=opening, headers={"Origin": "https://evil.example", "Host": "evil.example"}
        )

    assert answer.status_code == 403


def test_an_idempotency_key_with_another_query_gets_no_stored_response(
    host: AttackedHost,
) -> None:
    body = {"workflowId": "hello"}
    with host.client() as mallory:
        first = mallory.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "one"})
        other = mallory.http.post("/v1/runs?x=1", json=body, headers={"Idempotency-Key": "one"})

    assert first.status_code == 201
    assert (other.status_code, other.json()["error"]) == (409, "idempotency_key_mismatch")


def test_metrics_need_a_key_and_every_response_forbids_content_sniffing(host: AttackedHost) -> None:
    with host.client(None) as unkeyed:
        answers = [unkeyed.http.get(path) for path in ("/metrics", "/healthz", "/v1/runs", "/x")]

    assert answers[0].status_code == 401
    assert {answer.headers["x-content-type-options"] for answer in answers} == {"nosniff"}


def _crawl(person: Person) -> dict[str, str]:
    """Return every page reachable by links from the start page, by path."""
    pages: dict[str, str] = {}
    paths = deque(["/", "/settings"])
    while paths and len(pages) < MAX_PAGES:
        path = paths.popleft().partition("#")[0]
        if path in pages or not path.startswith("/") or path.startswith("/sign-out"):
            continue
        pages[path] = person.get(path, follow_redirects=True).text
        paths.extend(Markup(pages[path]).links)
    return pages
