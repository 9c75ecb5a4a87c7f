"""Open streams end when their key or session is no longer valid."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

import httpx
import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.host import ACME, ServedHost
from tests.support.long_runs import under_way
from tests.wire.timing import in_time, is_within
from wopr.protocol.documents import JsonObject

Connect = Callable[..., Wire]
# A stream must end within a second of the end of its key's validity.
SECONDS = 1.0
MCP_HEADERS = {"Accept": "application/json, text/event-stream"}
MCP_OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def new_key(host: ServedHost, *options: str) -> JsonObject:
    made: JsonObject = json.loads(
        host.command("keys", "create", "--tenant", "acme", "--role", "admin", "--json", *options)
    )
    return made


@contextmanager
def run_stream(wire: Wire, run_id: str) -> Generator[httpx.Response, None, None]:
    with wire.http.stream("GET", f"/v1/runs/{run_id}/events") as response:
        assert response.status_code == 200
        yield response


@contextmanager
def mcp_stream(wire: Wire, run_id: str) -> Generator[httpx.Response, None, None]:
    opened = wire.http.post("/mcp", json=MCP_OPENING, headers=MCP_HEADERS)
    headers = MCP_HEADERS | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
    with wire.http.stream("GET", "/mcp", headers=headers) as response:
        assert response.status_code == 200
        yield response


@pytest.mark.parametrize("opening", [run_stream, mcp_stream], ids=["events", "mcp"])
def test_a_stream_ends_within_a_second_of_the_revocation_of_its_key(
    host: ServedHost,
    acme: Wire,
    connect: Connect,
    opening: Callable[..., AbstractContextManager[httpx.Response]],
) -> None:
    run_id = under_way(acme)

    def seconds() -> float:
        made = new_key(host)
        with opening(connect(made["key"]), run_id) as response:
            host.command("keys", "revoke", made["keyId"])
            began = time.monotonic()
            response.read()
            return time.monotonic() - began

    assert is_within(SECONDS, seconds)
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_stream_ends_within_a_second_of_the_expiry_of_its_key(
    host: ServedHost, acme: Wire, connect: Connect
) -> None:
    run_id = under_way(acme)

    def opened_in_time(milliseconds: int) -> float | None:
        # Long enough that the key is still valid when the stream is opened.
        made = new_key(host, "--expires", f"{2 + milliseconds // 200}s")
        ends = datetime.fromisoformat(made["expiresAt"])
        with connect(made["key"]).http.stream("GET", f"/v1/runs/{run_id}/events") as response:
            response.read()
            late = (datetime.now(UTC) - ends).total_seconds()
        return late if response.status_code == 200 else None

    assert is_within(SECONDS, lambda: in_time(opened_in_time))
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_waiting_poll_reports_that_its_key_was_revoked(
    host: ServedHost, acme: Wire, connect: Connect
) -> None:
    run_id = under_way(acme)
    made = new_key(host)
    wire = connect(made["key"])
    path = f"/v1/runs/{run_id}/events/poll"
    assert wire.get(path, params={"lastSequence": 0}).status_code == 200

    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(wire.get, path, params={"lastSequence": 1, "timeout": 60})
        host.command("keys", "revoke", made["keyId"])

    assert poll.result().status_code == 401
    assert poll.result().json()["error"] == "key_revoked"
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_the_stream_of_another_key_continues(
    host: ServedHost, acme: Wire, connect: Connect
) -> None:
    run_id = under_way(acme)
    made = new_key(host)

    with acme.stream(run_id) as frames:
        with run_stream(connect(made["key"]), run_id) as ended:
            host.command("keys", "revoke", made["keyId"])
            ended.read()
        acme.post(f"/v1/runs/{run_id}/cancel")
        events = [frame.event for frame in frames]

    assert events[-1] == "run.cancelled"


def test_a_live_page_ends_within_a_second_of_signing_out(host: ServedHost, acme: Wire) -> None:
    run_id = under_way(acme)

    def seconds() -> float:
        with Person(host.url) as person, Person(host.url) as leaving:
            person.sign_in(ACME)
            leaving.http.cookies = person.http.cookies
            with person.http.stream("GET", f"/runs/{run_id}/live") as page:
                assert leaving.post("/sign-out").status_code == 303
                began = time.monotonic()
                page.read()
                assert page.text.endswith("event: ended\ndata: {}\n\n")
                return time.monotonic() - began

    assert is_within(SECONDS, seconds)
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_a_live_page_ends_within_a_second_of_the_revocation_of_its_key(
    host: ServedHost, acme: Wire
) -> None:
    run_id = under_way(acme)

    def seconds() -> float:
        made = new_key(host)
        with Person(host.url) as person:
            person.sign_in(made["key"])
            with person.http.stream("GET", f"/runs/{run_id}/live") as page:
                host.command("keys", "revoke", made["keyId"])
                began = time.monotonic()
                page.read()
                return time.monotonic() - began

    assert is_within(SECONDS, seconds)
    acme.post(f"/v1/runs/{run_id}/cancel")
