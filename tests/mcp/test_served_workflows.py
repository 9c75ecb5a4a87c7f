from __future__ import annotations

import time
from typing import cast

import anyio
import anyio.to_thread
import httpx
import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from tests.mcp.conftest import NewHost
from tests.support.client import Wire
from tests.support.definitions import delay, fresh, from_variable, node, variable, workflow
from tests.support.eventually import eventually, eventually_async
from tests.support.host import ACME, DEVELOPER, GLOBEX, VIEWER, ServedHost
from tests.support.interrupts import principal_of
from tests.support.mcp_clients import MODES, all_tools, beside, connected, run_of, text_of
from wopr.http.endpoint import AppState
from wopr.http.mcp.server import Context, McpHandlers
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.anyio
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def greeting() -> JsonObject:
    """Return a workflow that returns its input."""
    return workflow(
        [node("say", "core.identity", inputs={"name": from_variable("name")})],
        id=fresh("greet"),
        description="Greets.",
        variables=[
            variable("name", required=True, description="Whom to greet."),
            variable("times", "number", defaultValue=1),
        ],
    )


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_lists_workflows_with_the_schema_of_their_inputs(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    name = acme.register(greeting())

    async with connected(host.url, mode=mode) as client:
        tools = await all_tools(client)

    [found] = [tool for tool in tools if tool.name == name]
    assert found.description == "Greets."
    assert found.input_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Whom to greet."},
            "times": {"type": "number", "default": 1},
        },
        "required": ["name"],
    }


async def test_the_outputs_of_a_tool_contain_large_values_in_full(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(greeting())
    large = "Ada" * 100_000

    async with connected(host.url) as client:
        result = await client.call_tool(name, {"name": large})

    assert result.structured_content == {"say": {"name": large}}


@pytest.mark.parametrize("mode", MODES)
async def test_calling_a_tool_runs_the_workflow_and_returns_its_outputs(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    name = acme.register(greeting())
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def has_heard() -> bool:
        return bool(heard)

    async with connected(host.url, mode=mode) as client:
        result = await client.call_tool(name, {"name": "Ada"}, progress_callback=hear)
        # Notified beside the result, at any time.
        await eventually_async(has_heard)

    assert not result.is_error
    snapshot = acme.snapshot(run_of(result))
    assert result.structured_content == snapshot["outputs"]
    assert "Ada" in text_of(result)
    assert snapshot["status"] == "completed"
    [started] = [e for e in acme.log(run_of(result)) if e["type"] == "run.started"]
    assert started["payload"]["transport"] == "mcp"
    assert started["payload"]["owner"] == {"tenant": "acme", "principal": principal_of(ACME)}


async def test_a_failed_run_is_an_error_with_its_code_and_its_run(
    host: ServedHost, acme: Wire
) -> None:
    async with connected(host.url) as client:
        result = await client.call_tool("conformance-failure", {})

    assert result.is_error
    snapshot = acme.snapshot(run_of(result))
    assert result.structured_content["status"] == snapshot["status"] == "failed"
    assert result.structured_content["error"]["code"] == snapshot["error"]["code"]
    assert result.structured_content["runId"] == snapshot["runId"]
    assert snapshot["error"]["code"] in text_of(result)


async def test_an_invalid_input_is_reported_with_its_field_and_starts_nothing(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(greeting())

    async with connected(host.url) as client:
        result = await client.call_tool(name, {"name": 7})

    assert result.is_error
    assert result.structured_content["error"]["code"] == "validation_error"
    assert result.structured_content["error"]["details"]["field"] == "inputs.name"
    assert "inputs.name must be a string" in text_of(result)
    assert acme.document("/v1/runs", params={"workflowId": name})["items"] == []


async def test_another_tenant_neither_sees_nor_calls_a_workflow(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(greeting())

    async with connected(host.url, GLOBEX) as client:
        tools = await all_tools(client)
        with pytest.raises(MCPError) as foreign:
            await client.call_tool(name, {"name": "Ada"})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("no-such-workflow", {"name": "Ada"})

    assert name not in [tool.name for tool in tools]
    assert foreign.value.message == f"there is no tool {name!r}"
    assert foreign.value.code == unknown.value.code
    assert acme.document("/v1/runs", params={"workflowId": name})["items"] == []


async def test_a_key_that_may_not_start_runs_has_no_tools(host: ServedHost, acme: Wire) -> None:
    name = acme.register(greeting())

    async with connected(host.url, VIEWER) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool(name, {"name": "Ada"})

    assert tools == []
    assert result.is_error
    assert result.structured_content["error"]["details"]["scopeRequired"] == "runs:create"


@pytest.mark.parametrize("key", ["wrong-key-of-nobody", None])
def test_a_wrong_or_missing_key_gets_401_and_is_not_repeated(
    host: ServedHost, key: str | None
) -> None:
    headers = ACCEPT | ({} if key is None else {"Authorization": f"Bearer {key}"})

    response = httpx.post(f"{host.url}/mcp", json=CALL, headers=headers, trust_env=False)

    assert response.status_code == 401
    assert response.json()["error"] == "unauthenticated"
    assert response.headers["www-authenticate"] == "Bearer"
    assert "wrong-key" not in response.text


def test_a_page_of_another_site_is_refused(acme: Wire, host: ServedHost) -> None:
    foreign = acme.http.post("/mcp", json=CALL, headers=ACCEPT | {"Origin": "https://evil.example"})
    own = acme.http.post("/mcp", json=CALL, headers=ACCEPT | {"Origin": host.url})

    assert foreign.status_code == 403
    assert own.status_code != 403


def test_a_host_header_does_not_make_another_site_s_page_trusted(
    acme: Wire, host: ServedHost
) -> None:
    site = f"rebound.example:{host.port}"
    headers = ACCEPT | {"Origin": f"http://{site}", "Host": site}

    answer = acme.http.post("/mcp", json=CALL, headers=headers)

    assert answer.status_code == 403
    assert "WOPR_MCP_ORIGINS" in answer.json()["message"]


def test_a_page_of_a_configured_origin_is_accepted(new_host: NewHost) -> None:
    host = new_host(
        WOPR_MCP_ORIGINS="https://app.example.com,https://other.example.com",
        WOPR_PUBLIC_URL="https://wopr.example.com",
    )
    allowed = (
        "https://app.example.com",
        "https://other.example.com",
        "https://wopr.example.com",
        f"http://localhost:{host.port}",
    )

    with Wire(host.url, ACME) as wire:
        for origin in allowed:
            answer = wire.http.post("/mcp", json=CALL, headers=ACCEPT | {"Origin": origin})
            assert answer.status_code != 403, origin


def test_a_session_can_be_used_only_with_the_key_that_opened_it(
    acme: Wire, host: ServedHost
) -> None:
    opened = acme.http.post("/mcp", json=OPENING, headers=ACCEPT)
    session = ACCEPT | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}

    with Wire(host.url, DEVELOPER) as colleague, Wire(host.url, GLOBEX) as stranger:
        answers = [
            wire.http.post("/mcp", json=CALL, headers=session) for wire in (colleague, stranger)
        ]
        invented = stranger.http.post(
            "/mcp", json=CALL, headers=ACCEPT | {"Mcp-Session-Id": "0" * 32}
        )

    assert [answer.status_code for answer in answers] == [404, 404]
    assert {answer.text for answer in answers} == {invented.text}


def test_a_key_has_a_limit_of_sessions_that_does_not_affect_others(new_host: NewHost) -> None:
    host = new_host(WOPR_RATE_LIMIT="0")

    with Wire(host.url, ACME) as acme, Wire(host.url, DEVELOPER) as colleague:
        opened = [acme.http.post("/mcp", json=OPENING, headers=ACCEPT) for _ in range(50)]
        refused = acme.http.post("/mcp", json=OPENING, headers=ACCEPT)
        other = colleague.http.post("/mcp", json=OPENING, headers=ACCEPT)
        session = {"Mcp-Session-Id": opened[0].headers["mcp-session-id"]}
        ended = acme.http.delete("/mcp", headers=ACCEPT | session)
        again = acme.http.post("/mcp", json=OPENING, headers=ACCEPT)

    assert {answer.status_code for answer in opened} == {200}
    assert refused.status_code == 429
    assert "this key has 50 MCP sessions" in refused.json()["message"]
    assert other.status_code == 200
    assert (ended.status_code, again.status_code) == (200, 200)


async def test_a_key_at_its_session_limit_can_call_without_a_session(new_host: NewHost) -> None:
    host = new_host(WOPR_RATE_LIMIT="0")
    with Wire(host.url, ACME) as acme:
        for _ in range(50):
            acme.http.post("/mcp", json=OPENING, headers=ACCEPT)

        async with connected(host.url) as client:
            listed = await client.list_tools()

    assert isinstance(listed.tools, list)


async def test_a_repeated_call_with_the_same_key_starts_no_second_run(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(greeting())
    meta = beside({"io.openwop/idempotencyKey": fresh("key")})

    async with connected(host.url) as client:
        first = await client.call_tool(name, {"name": "Ada"}, meta=meta)
        second = await client.call_tool(name, {"name": "Ada"}, meta=meta)

    assert run_of(first) == run_of(second)
    assert first.structured_content == second.structured_content


async def test_a_run_belongs_to_the_trace_that_the_call_names(host: ServedHost, acme: Wire) -> None:
    name = acme.register(greeting())

    async with connected(host.url) as client:
        result = await client.call_tool(name, {"name": "Ada"}, meta=beside({"traceparent": TRACE}))

    [started] = [e for e in acme.log(run_of(result)) if e["type"] == "run.started"]
    assert started["payload"]["traceparent"] == TRACE


async def test_a_call_returns_when_a_run_takes_too_long_and_the_run_continues(
    new_host: NewHost,
) -> None:
    host = new_host(WOPR_MCP_CALL_SECONDS="1")
    with Wire(host.url, ACME) as acme:
        name = acme.register(workflow([delay("sleep", 600_000)]))

        async with connected(host.url) as client:
            result = await client.call_tool(name, {})

        assert not result.is_error
        assert result.structured_content["status"] == "running"
        assert acme.snapshot(run_of(result))["status"] == "running"


async def test_a_stopping_host_disconnects_its_mcp_clients(new_host: NewHost) -> None:
    host = new_host()
    with Wire(host.url, ACME) as acme:
        name = acme.register(workflow([delay("sleep", 600_000)]))
    began = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    async def stop() -> None:
        await began.wait()
        await anyio.to_thread.run_sync(host.stop)

    for mode in MODES:
        began = anyio.Event()
        async with connected(host.url, mode=mode) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(MCPError):
                await client.call_tool(name, {}, progress_callback=hear)
        host.start()


def test_a_host_with_mcp_disabled_says_so(new_host: NewHost) -> None:
    host = new_host(WOPR_MCP="off")

    with Wire(host.url, ACME) as acme:
        response = acme.http.post("/mcp", json=CALL, headers=ACCEPT)
        transports = acme.document("/.well-known/openwop")["supportedTransports"]

    assert response.status_code == 501
    assert response.json()["error"] == "capability_not_provided"
    assert transports == ["rest"]


def test_discovery_names_mcp_when_it_is_served(acme: Wire) -> None:
    assert acme.document("/.well-known/openwop")["supportedTransports"] == ["rest", "mcp"]


def test_mcp_requests_count_against_the_rate_limit_of_the_key(new_host: NewHost) -> None:
    host = new_host(WOPR_RATE_LIMIT="1")

    with Wire(host.url, ACME) as acme:
        # Slow clients are accepted.
        eventually(lambda: acme.http.post("/mcp", json=CALL, headers=ACCEPT).status_code == 429)


async def test_an_idempotency_key_that_no_header_can_carry_is_refused(
    host: ServedHost, acme: Wire
) -> None:
    name = acme.register(greeting())

    async with connected(host.url) as client:
        meta = beside({"io.openwop/idempotencyKey": "\u0416"})
        with pytest.raises(MCPError) as refused:
            await client.call_tool(name, {"name": "Ada"}, meta=meta)

    assert refused.value.error.code == INVALID_PARAMS
    assert "Latin-1" in refused.value.error.message


async def test_an_unexpected_error_is_reported_without_its_text() -> None:
    async def broken(ctx: Context, params: None) -> None:
        raise ValueError("inner workings")

    tell = McpHandlers(AppState(time.monotonic)).with_mcp_errors(broken)
    with pytest.raises(MCPError) as told:
        await tell(cast("Context", None), None)

    assert told.value.error.code == INTERNAL_ERROR
    assert "inner workings" not in told.value.error.model_dump_json()
    assert told.value.error.data["details"]["correlationId"]
