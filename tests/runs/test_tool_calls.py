from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.definitions import node
from tests.support.in_process import Bench, bench, numbered
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext, ToolUse
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.anyio

SECRET = "the-curlew-calls-over-the-marsh"


async def caller(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Call a tool, which fails when the config says so."""

    async def effect() -> Json:
        if config.get("fails"):
            raise NodeFailure(SECRET, code="tool_broken", retryable=False)
        return {"answer": 42}

    use = ToolUse(
        tool_name="oracle",
        arguments={"question": "why"},
        transport="native",
        required_scopes=tuple(config.get("scopes", ())),
    )
    return Completed({"result": await ctx.call_tool(use, effect, lambda result: result)})


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Bench]:
    async_type = NodeType(type_id="test.caller", execute=caller, is_async=True)
    async with bench(tmp_path, async_type, new_id=numbered()) as running:
        yield running


async def run(ours: Bench, config: JsonObject, **fields: Json) -> tuple[str, list[JsonObject]]:
    """Return the final status of a run with one tool call, and the payloads of its tool events."""
    step = node("step", "test.caller", config=config, settings={"maxRetries": 0}, **fields)
    run_id = await ours.create(await ours.register([step]))
    await ours.until(run_id, "completed", "failed")
    log = await ours.log(run_id)
    return (await ours.row(run_id)).status, [
        event.payload for event in log if event.type.startswith("agent.tool")
    ]


async def test_a_call_is_on_the_log_with_its_return(ours: Bench) -> None:
    status, [called, returned] = await run(ours, {})

    assert status == "completed"
    assert (called["toolName"], called["transport"]) == ("oracle", "native")
    assert "arguments" not in called
    assert called["callId"] == returned["callId"] == "call-step-0-0"
    assert (returned["status"], returned["outcome"]) == ("ok", {"answer": 42})


async def test_a_failed_tool_fails_its_node_with_the_error_on_the_log(ours: Bench) -> None:
    status, [_, returned] = await run(ours, {"fails": True})

    assert status == "failed"
    assert returned["error"] == {"code": "tool_broken", "message": SECRET}


async def test_the_error_of_a_node_with_sensitive_outputs_is_masked(ours: Bench) -> None:
    _, [_, returned] = await run(ours, {"fails": True}, outputSensitivity={"result": True})

    assert returned["error"]["code"] == "tool_broken"
    assert SECRET not in str(returned)


async def test_the_result_of_a_node_with_sensitive_outputs_is_not_on_the_log(ours: Bench) -> None:
    status, [_, returned] = await run(ours, {}, outputSensitivity={"result": True})

    assert status == "completed"
    assert "outcome" not in returned


async def test_a_call_without_its_scopes_is_forbidden(ours: Bench) -> None:
    status, [_, returned] = await run(ours, {"scopes": ["tools:oracle"]})

    assert status == "failed"
    assert (returned["status"], returned["error"]["code"]) == ("forbidden", "forbidden")
