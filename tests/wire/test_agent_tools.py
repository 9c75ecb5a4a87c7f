from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import rfc8785

from tests.support.agent_definitions import (
    agent_events,
    events_of,
    mock,
    only_event,
    scripted,
)
from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from tests.support.host import ACME, OPERATOR, ServedHost, served
from tests.support.surfaces import leaks, surfaces
from wopr.protocol.documents import Json, JsonObject

HTTP = "wopr.http.request"


class Shop:
    """A service that counts and records its requests."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.status = 200
        shop = self

        class Counter(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("content-length", 0))
                shop.seen.append((self.command, self.path, self.rfile.read(length)))
                body = b'{"stock":7}'
                self.send_response(shop.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = _serve

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Counter)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def shop() -> Iterator[Shop]:
    opened = Shop()
    thread = threading.Thread(target=opened.server.serve_forever, args=(0.05,))
    thread.start()
    yield opened
    opened.server.shutdown()
    thread.join()
    opened.server.server_close()


@pytest.fixture(scope="module")
def outgoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host whose HTTP nodes may call this machine."""
    settings = {"WOPR_ALLOW_PRIVATE_DESTINATIONS": "1"}
    with served(tmp_path_factory.mktemp("outgoing"), "--conformance", **settings) as running:
        yield running


@pytest.fixture
def wire(outgoing: ServedHost) -> Iterator[Wire]:
    with Wire(outgoing.url, ACME) as opened:
        yield opened


def called(wire: Wire, url: str, **config: Json) -> tuple[JsonObject, list[JsonObject]]:
    """Return the snapshot and the log of a run that calls a URL."""
    call = node("call", HTTP, config={"url": url, **config})
    run_id = wire.create(wire.register(workflow([call])))
    return wire.finished(run_id), wire.log(run_id)


# Egress of nodes


def test_a_node_s_http_call_is_logged_as_the_host_s_own(wire: Wire, shop: Shop) -> None:
    found, log = called(wire, f"{shop.url}/stock")

    assert found["status"] == "completed"
    before, after = (event["payload"] for event in agent_events(log))
    arguments = {"method": "GET", "url": f"{shop.url}/stock"}
    assert before == {
        "agentId": "core.system",
        "toolName": HTTP,
        "callId": "call-call-0-0",
        "argsHash": hashlib.sha256(rfc8785.dumps(arguments)).hexdigest(),
        "principal": "core.system",
        "transport": "http",
    }
    assert after == {
        "agentId": "core.system",
        "toolName": HTTP,
        "callId": "call-call-0-0",
        "status": "ok",
        "outcome": {"status": 200},
        "durationMs": after["durationMs"],
    }
    assert after["durationMs"] >= 0


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (503, 2)])
def test_a_failed_call_of_a_node_with_sensitive_outputs_shows_its_code_and_not_its_text(
    wire: Wire, shop: Shop, method: str, status: int, attempts: int
) -> None:
    shop.status = status
    config = {"url": shop.url, "method": method}
    call = node("call", HTTP, config=config, outputSensitivity={"body": True})
    definition = workflow([call], settings={"maxRetries": 1, "backoff": {"initialMs": 1}})

    run_id = wire.create(wire.register(definition))
    found = wire.finished(run_id)

    assert found["error"]["code"] == "http_error"
    assert found["error"]["details"] == {"status": status}
    returned = [e["payload"] for e in events_of(wire.log(run_id), "agent.toolReturned")]
    error = {"code": "http_error", "message": "[REDACTED]"}
    assert [each["error"] for each in returned] == [error] * attempts
    seen = surfaces(wire, run_id) + wire.get(f"/v1/runs/{run_id}/debug-bundle").text
    assert not leaks(seen, f"answered {status}")


def test_a_call_of_a_node_with_sensitive_outputs_has_no_outcome(wire: Wire, shop: Shop) -> None:
    call = node("call", HTTP, config={"url": shop.url}, outputSensitivity={"body": True})
    run_id = wire.create(wire.register(workflow([call])))

    found = wire.finished(run_id)

    assert found["outputs"]["call"]["body"] == "[REDACTED]"
    returned = only_event(wire.log(run_id), "agent.toolReturned")["payload"]
    assert returned["status"] == "ok"
    assert "outcome" not in returned


def test_a_return_is_caused_by_the_call_and_both_are_inside_the_node(
    wire: Wire, shop: Shop
) -> None:
    _, log = called(wire, shop.url)

    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "agent.toolCalled",
        "agent.toolReturned",
        "node.completed",
        "run.completed",
    ]
    assert log[3]["causationId"] == log[2]["eventId"]
    assert {event["nodeId"] for event in log[1:5]} == {"call"}


def test_the_hash_covers_the_sent_arguments_and_the_log_shows_none_of_them(
    wire: Wire, shop: Shop
) -> None:
    body = {"order": "a private matter"}
    _, log = called(wire, shop.url, method="POST", body=body, headers={"x-key": "open sesame"})

    arguments: JsonObject = {"method": "POST", "url": shop.url, "body": body}
    hashed = hashlib.sha256(rfc8785.dumps(arguments)).hexdigest()
    assert agent_events(log)[0]["payload"]["argsHash"] == hashed
    told = json.dumps(agent_events(log))
    assert "private matter" not in told
    assert "sesame" not in told
    assert "stock" not in told
    assert json.loads(shop.seen[0][2]) == body


def test_a_failed_call_returns_an_error_and_its_duration(wire: Wire, shop: Shop) -> None:
    shop.server.server_close()
    found, log = called(wire, shop.url)

    assert found["error"]["code"] == "http_error"
    returned = agent_events(log)[1]["payload"]
    assert returned["status"] == "error"
    assert returned["error"]["code"] == "http_error"
    assert "durationMs" in returned
    assert "outcome" not in returned


def test_a_response_of_the_wrong_kind_is_an_error_that_names_it(wire: Wire, shop: Shop) -> None:
    shop.status = 404
    found, log = called(wire, shop.url)

    assert found["error"]["code"] == "http_error"
    message = agent_events(log)[1]["payload"]["error"]["message"]
    assert message == "GET 127.0.0.1 answered 404"


def test_a_denied_destination_is_a_failed_call(acme: Wire, shop: Shop) -> None:
    found, log = called(acme, shop.url)

    assert found["error"]["code"] == "egress_denied"
    assert agent_events(log)[1]["payload"]["error"]["code"] == "egress_denied"
    assert shop.seen == []


def test_a_retried_call_is_another_call(wire: Wire, shop: Shop) -> None:
    shop.status = 503
    settings = {"maxRetries": 1, "backoff": {"initialMs": 1}}
    call = node("call", HTTP, config={"url": shop.url}, settings=settings)
    run_id = wire.create(wire.register(workflow([call])))
    wire.finished(run_id)

    ids = [event["payload"]["callId"] for event in events_of(wire.log(run_id), "agent.toolCalled")]

    assert ids == ["call-call-0-0", "call-call-1-0"]
    assert len(shop.seen) == 2


def test_a_changing_call_in_a_loop_is_made_in_every_round(wire: Wire, shop: Shop) -> None:
    back = {"type": "expression", "expression": "!nodes.loop.done"}
    nodes = [
        node("loop", "core.loop", config={"times": 3}),
        node("call", HTTP, config={"url": shop.url, "method": "POST"}),
    ]
    edges = [edge("loop", "call", condition=back), edge("call", "loop")]
    found = wire.run(wire.register(workflow(nodes, edges=edges)))

    assert found["status"] == "completed"
    assert len(shop.seen) == 3


# Per-tool authorisation


def test_a_tool_needs_its_declared_scopes_from_the_principal_of_the_run(
    wire: Wire, shop: Shop
) -> None:
    found, log = called(wire, shop.url, requiredScopes=["agents:write"])

    assert found["status"] == "completed"
    assert agent_events(log)[1]["payload"]["status"] == "ok"


def test_a_call_without_the_scope_is_refused_and_not_made(
    outgoing: ServedHost, wire: Wire, shop: Shop
) -> None:
    call = node("call", HTTP, config={"url": shop.url, "requiredScopes": ["agents:write"]})
    workflow_id = wire.register(workflow([call]))
    with Wire(outgoing.url, OPERATOR) as operator:
        run_id = operator.create(workflow_id)
        found = operator.finished(run_id)
        log = operator.log(run_id)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "forbidden"
    assert found["error"]["details"] == {
        "scope": "tool",
        "toolName": HTTP,
        "requiredScopes": ["agents:write"],
    }
    before, after = agent_events(log)
    assert after["payload"]["status"] == "forbidden"
    assert after["payload"]["error"]["code"] == "forbidden"
    assert not {"durationMs", "outcome"} & after["payload"].keys()
    assert after["causationId"] == before["eventId"]
    assert shop.seen == []


def test_an_unheld_scope_denies_every_key(wire: Wire, shop: Shop) -> None:
    found, _ = called(wire, shop.url, requiredScopes=["db:write"])

    assert found["error"]["code"] == "forbidden"
    assert shop.seen == []


def test_a_revoked_key_may_call_nothing(outgoing: ServedHost, wire: Wire, shop: Shop) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    call = node("call", HTTP, config={"url": shop.url, "requiredScopes": ["runs:read"]})
    workflow_id = wire.register(workflow([gate, call]))
    options = ("--tenant", "acme", "--role", "developer", "--json")
    made = json.loads(outgoing.command("keys", "create", *options))
    with Wire(outgoing.url, made["key"]) as other:
        run_id = other.create(workflow_id)
        other.events_until(run_id, "interrupt.requested")
    outgoing.command("keys", "revoke", made["keyId"])
    accept = {"resumeValue": {"action": "accept"}}
    wire.post(f"/v1/runs/{run_id}/interrupts/gate", accept)

    assert wire.finished(run_id)["error"]["code"] == "forbidden"
    assert shop.seen == []


# Per-tool rate limit


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """Start a host that lets a key call a tool once in a thousand seconds."""
    settings = {"WOPR_TOOL_RATE_LIMIT": "0.001", "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1"}
    with (
        served(tmp_path_factory.mktemp("slow"), "--conformance", **settings) as running,
        Wire(running.url, ACME) as opened,
    ):
        yield opened


def test_a_tool_called_too_often_is_not_called_and_the_refusal_is_logged(
    slow: Wire, shop: Shop
) -> None:
    assert called(slow, shop.url)[0]["status"] == "completed"

    found, log = called(slow, shop.url)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "rate_limited"
    assert found["error"]["details"]["scope"] == "tool"
    assert found["error"]["details"]["retryAfterMs"] > 0
    before, after = agent_events(log)
    assert after["payload"]["status"] == "rate_limited"
    assert "durationMs" not in after["payload"]
    assert after["causationId"] == before["eventId"]
    assert len(shop.seen) == 1


def test_each_tool_of_an_agent_has_its_own_limit(slow: Wire) -> None:
    calls = [{"toolId": f"openwop:{name}", "result": 1} for name in ("a", "a", "b")]
    run_id = slow.create(slow.register(scripted([mock(mockToolCalls=calls)])))

    assert slow.finished(run_id)["status"] == "completed"
    returned = [e["payload"] for e in events_of(slow.log(run_id), "agent.toolReturned")]
    assert [payload["status"] for payload in returned] == ["ok", "rate_limited", "ok"]
    assert returned[1]["error"]["code"] == "rate_limited"
    assert "outcome" not in returned[1]


def test_a_limit_is_advertised_where_it_is_set(slow: Wire, acme: Wire) -> None:
    for wire, is_limited in ((slow, True), (acme, False)):
        assert wire.document("/.well-known/openwop")["toolHooks"] == {
            "supported": True,
            "prePostEvents": True,
            "perToolAuthorization": True,
            "perToolRateLimit": is_limited,
        }
