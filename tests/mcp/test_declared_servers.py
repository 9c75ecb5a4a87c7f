from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from tests.mcp.conftest import COMMAND, NewHost, Notes
from tests.support.client import Wire
from tests.support.definitions import from_variable, node, variable, workflow
from tests.support.eventually import eventually
from tests.support.forked import run
from tests.support.host import ACME, GLOBEX, ServedHost, environment
from wopr.agents.mcp.servers import McpServer, read_servers
from wopr.protocol.documents import Json, JsonObject

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOKEN = "hunter2-hunter2-hunter2"
# Enough for a busy machine to accept the call.
HANGS_MS = 10_000


@pytest.fixture
def file(notes: Notes, tmp_path: Path) -> Path:
    """Return the file in which an operator declares the server."""
    declared: JsonObject = {
        "name": "notes",
        "command": list(COMMAND),
        "env": {"NOTES_CALLS": str(notes.calls_file)},
        "secretEnv": {"NOTES_TOKEN": "notes"},
        "tools": ["search", "token", "read", "rant", "die", "hang"],
    }
    path = tmp_path / "servers.yaml"
    path.write_text(yaml.safe_dump({"servers": [declared]}))
    return path


@pytest.fixture
def declaring(file: Path, new_host: NewHost) -> NewHost:
    """Start a host with the declared server."""

    def start(**variables: str) -> ServedHost:
        own = {"WOPR_MCP_SERVERS": str(file), "WOPR_SECRET_acme__notes": TOKEN}
        return new_host("--log-format", "json", **own, WOPR_SECRET_globex__notes=TOKEN, **variables)

    return start


def calls(tool: str, *more: JsonObject, **fields: Json) -> JsonObject:
    """Return a workflow that calls one tool, and then has further nodes."""
    config = {"server": "notes", "tool": tool, **fields.pop("config", {})}
    return workflow([node("call", "openwop.mcp.call", config=config, **fields), *more])


def returned(wire: Wire, run_id: str) -> JsonObject:
    [found] = [e["payload"] for e in wire.log(run_id) if e["type"] == "agent.toolReturned"]
    return dict(found)


@pytest.mark.parametrize("type_id", ["openwop.mcp.call", "core.mcp.toolCall"])
def test_a_node_calls_a_tool_with_its_inputs_and_the_trace_of_its_run(
    declaring: NewHost, notes: Notes, type_id: str
) -> None:
    with Wire(declaring().url, ACME) as acme:
        name = acme.register(
            calls("search", typeId=type_id, inputs={"text": from_variable("text")})
            | {"variables": [variable("text")]}
        )
        run_id = acme.create(name, {"text": "rain"}, {"traceparent": TRACE})
        snapshot = acme.finished(run_id)
        log = acme.log(run_id)
        result = returned(acme, run_id)

    assert snapshot["outputs"]["call"]["result"] == {"result": "nothing about rain"}
    [called] = [e["payload"] for e in log if e["type"] == "agent.toolCalled"]
    assert called["toolName"] == "mcp:notes.search"
    assert (called["agentId"], called["transport"]) == ("core.system", "mcp")
    assert "inputs" not in called
    assert result["outcome"].keys() == {"resultSha256", "resultLength"}
    [call] = notes.calls
    assert call["meta"]["traceparent"] == TRACE
    assert call["meta"]["io.openwop/invocationId"]


def test_a_replay_of_such_a_node_makes_no_call(declaring: NewHost, notes: Notes) -> None:
    with Wire(declaring().url, ACME) as acme:
        run_id = acme.run(acme.register(calls("search", config={"arguments": {"text": "x"}})))[
            "runId"
        ]

        fork = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
        acme.finished(fork)

        told = [[(e["type"], e["payload"]) for e in acme.log(each)] for each in (run_id, fork)]
    assert told[0] == told[1]
    assert notes.called == ["search"]


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("search", {"text": 7}, "validation_error"),
        ("wipe", {}, "tool_unavailable"),
        ("nothing", {}, "tool_unavailable"),
    ],
)
def test_an_impossible_call_fails_the_node_and_is_not_made(
    declaring: NewHost, notes: Notes, tool: str, arguments: JsonObject, code: str
) -> None:
    with Wire(declaring().url, ACME) as acme:
        found = acme.run(acme.register(calls(tool, config={"arguments": arguments})))

    assert found["error"]["code"] == code
    assert notes.called == []


def test_a_failed_call_in_a_node_with_sensitive_outputs_shows_its_code_only(
    declaring: NewHost, notes: Notes
) -> None:
    marked = {"outputSensitivity": {"result": True}}
    with Wire(declaring().url, ACME) as acme:
        run_id = acme.create(acme.register(calls("rant", **marked)))
        found = acme.finished(run_id)
        result = returned(acme, run_id)

    assert notes.called == ["rant"]
    assert (found["error"]["code"], found["error"]["message"]) == ("tool_error", "[REDACTED]")
    assert result["error"] == {"code": "tool_error", "message": "[REDACTED]"}


def test_a_server_that_dies_or_hangs_fails_the_node_with_the_reason(
    declaring: NewHost, notes: Notes
) -> None:
    with Wire(declaring().url, ACME) as acme:
        hung = acme.run(acme.register(calls("hang", config={"timeoutMs": HANGS_MS})))
        died = acme.run(acme.register(calls("die")))

    assert died["error"]["code"] == "tool_unavailable"
    assert hung["error"]["code"] == "tool_timeout"
    assert notes.called == ["hang", "die"]


def test_a_failed_tool_fails_the_node_and_its_text_is_not_logged(
    declaring: NewHost, notes: Notes
) -> None:
    with Wire(declaring().url, ACME) as acme:
        found = acme.run(acme.register(calls("rant")))
        log = acme.log(found["runId"])

    assert found["error"]["code"] == "tool_error"
    assert found["error"]["message"] == "mcp:notes.rant returned an error"
    assert notes.called == ["rant"]
    assert "private notes" not in f"{found} {log}"


def test_a_tool_that_is_called_too_often_is_not_called(declaring: NewHost, notes: Notes) -> None:
    with Wire(declaring(WOPR_TOOL_RATE_LIMIT="0.0001").url, ACME) as acme:
        name = acme.register(calls("search", config={"arguments": {"text": "x"}}))
        first, second = acme.run(name), acme.run(name)
        refused = returned(acme, second["runId"])

    assert first["status"] == "completed"
    assert second["error"]["code"] == "rate_limited"
    assert refused["status"] == "rate_limited"
    assert notes.called == ["search"]


def test_each_tenant_has_its_own_session(declaring: NewHost, notes: Notes) -> None:
    host = declaring()

    for key in (ACME, GLOBEX, ACME):
        with Wire(host.url, key) as wire:
            wire.run(wire.register(calls("search", config={"arguments": {"text": "x"}})))

    first, other, again = (call["pid"] for call in notes.calls)
    assert first == again != other


def test_neither_log_nor_data_of_the_host_contains_the_secret_of_a_server(
    declaring: NewHost, notes: Notes
) -> None:
    host = declaring()
    with Wire(host.url, ACME) as acme:
        found = acme.run(acme.register(calls("token")))
        everything = f"{found} {acme.log(found['runId'])}"
    # Notifications beside the responses arrive at any time.
    eventually(lambda: "mcp server stderr" in host.log())
    host.stop()

    assert notes.called == ["token"]
    assert TOKEN not in everything + host.log()
    held = [path for path in host.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in held if TOKEN.encode() in path.read_bytes()]


def test_text_of_a_tool_approves_nothing_and_stays_in_its_tenant(
    declaring: NewHost, notes: Notes
) -> None:
    host = declaring()
    gate = node("gate", "core.approvalGate", config={"title": "Send it?"})
    with Wire(host.url, ACME) as acme, Wire(host.url, GLOBEX) as globex:
        run_id = acme.create(acme.register(calls("read", gate)))
        acme.events_until(run_id, "approval.requested")

        assert acme.snapshot(run_id)["status"] == "waiting-approval"
        assert globex.document("/v1/runs")["items"] == []
        assert globex.document("/v1/interrupts")["items"] == []
    assert notes.called == ["read"]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"name": "notes"}, "either command or url"),
        ({"name": "notes", "command": ["x"], "url": "https://a.b"}, "either command or url"),
        ({"name": "Notes", "command": ["x"]}, "name"),
        ({"name": "notes", "url": "file:///etc"}, "absolute http or https URL"),
        ({"name": "notes", "url": "https://me:pw@a.b"}, "absolute http or https URL"),
        ({"name": "notes", "url": "https://a.b", "secretEnv": {"A": "b"}}, "secretEnv"),
        ({"name": "notes", "command": ["x"], "credentialsRef": "b"}, "credentialsRef"),
        ({"name": "notes", "command": ["x"], "wish": 1}, "wish"),
    ],
)
def test_an_invalid_declaration_is_refused_with_its_place(
    declared: JsonObject, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_servers({"servers": [declared]})


def test_two_servers_of_one_name_are_refused() -> None:
    one: Json = msgspec.to_builtins(McpServer(name="notes", command=["x"]))

    with pytest.raises(ValueError, match="Two MCP servers have the same name: notes"):
        read_servers({"servers": [one, one]})


def test_a_host_with_an_invalid_declaration_does_not_start_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    file.write_text("servers: [{name: notes}]")
    variables = {"WOPR_MCP_SERVERS": str(file)}

    done = run(("serve", "--port", "0"), environment(tmp_path / "data", variables))

    assert done.returncode != 0
    assert "mcp_servers" in done.stderr
    assert "either command or url" in done.stderr
    assert "Traceback" not in done.stderr
