from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from tests.models.bench import TestModels, calls, model_bench, says
from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench
from wopr.agents.models.port import ModelFault
from wopr.agents.tools.functions import function_tool
from wopr.agents.tools.tool import ToolContext
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.anyio


def asks(kind: str = "agent", **config: Json) -> JsonObject:
    own = {"model": "test:small", "prompt": "Do your task."} | config
    return node("ask", f"openwop.llm.{kind}", config=own)


async def finished(bench: Bench, question: JsonObject, **configurable: Json) -> JsonObject:
    run_id = await bench.create(await bench.register([question]), **configurable)
    await bench.until(run_id, "completed", "failed")
    return await bench.snapshot(run_id)


async def events(bench: Bench, run_id: str, event_type: str) -> list[JsonObject]:
    return [event.payload for event in await bench.log(run_id) if event.type == event_type]


async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def broken(reason: str) -> str:
    raise RuntimeError(f"no luck: {reason}")


async def sleeper() -> None:
    await anyio.sleep_forever()


async def huge() -> str:
    return "x" * 1_000_000


async def test_a_python_function_is_called_with_checked_arguments(tmp_path: Path) -> None:
    models = TestModels(calls(("double", {"number": 21})), says("42"))

    async with model_bench(tmp_path, models, [function_tool(double)]) as bench:
        found = await finished(bench, asks(tools=["local:double"]))

    assert found["outputs"]["ask"]["text"] == "42"
    assert '{"outcome":42}' in models.requests[1].messages[-1].content


@pytest.mark.parametrize(
    ("tool", "arguments", "timeout_ms", "code"),
    [
        (broken, {"reason": "rain-in-the-marsh"}, 60_000, "tool_error"),
        (sleeper, {}, 50, "tool_timeout"),
    ],
)
async def test_a_tool_that_raises_or_never_ends_is_reported_to_the_model(
    tmp_path: Path, tool: object, arguments: JsonObject, timeout_ms: int, code: str
) -> None:
    own = function_tool(tool)  # type: ignore[arg-type]  # one of the functions above
    models = TestModels(calls((own.name.removeprefix("local:"), arguments)), says("Pity."))

    async with model_bench(tmp_path, models, [own]) as bench:
        found = await finished(bench, asks(tools=[own.name], toolTimeoutMs=timeout_ms))
        [returned] = await events(bench, found["runId"], "agent.toolReturned")

    assert returned["error"]["code"] == code
    assert code in models.requests[1].messages[-1].content


async def test_a_tool_that_blocks_the_event_loop_is_reported_with_its_line(tmp_path: Path) -> None:
    models = TestModels(calls(("blocking", {})), says("Done."))
    deadline = time.monotonic() + 60

    async def blocking() -> None:
        while not warnings() and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - blocking is what is tested

    def warnings() -> list[JsonObject]:
        # On a busy machine the node can be reported too, before it calls the tool.
        blocked = [dict(each) for each in logs if "event loop blocked" in each["event"]]
        return [each for each in blocked if each.get("tool") == "local:blocking"]

    with capture_logs() as logs:
        async with model_bench(
            tmp_path, models, [function_tool(blocking)], blocked_loop_seconds=0.05
        ) as bench:
            await finished(bench, asks(tools=["local:blocking"]))

    [line] = warnings()
    assert line["node_id"] == "ask"
    assert line["file"] == __file__
    assert "test_a_tool_that_blocks" in line["function"]
    assert "the function of the tool" in line["event"]


async def test_an_exception_of_a_tool_is_logged_without_its_text(tmp_path: Path) -> None:
    models = TestModels(calls(("broken", {"reason": "rain-in-the-marsh"})), says("Pity."))

    async with model_bench(tmp_path, models, [function_tool(broken)]) as bench:
        with capture_logs() as logged:
            await finished(bench, asks(tools=["local:broken"]))

    [line] = [each for each in logged if each["event"] == "tool raised"]
    assert (line["tool"], line["error"]) == ("local:broken", "RuntimeError")
    assert "test_custom_models.py:" in line["at"]
    assert "rain-in-the-marsh" not in str(line)


async def test_a_result_that_is_too_long_is_cut(tmp_path: Path) -> None:
    models = TestModels(calls(("huge", {})), says("Long."))

    async with model_bench(tmp_path, models, [function_tool(huge)]) as bench:
        await finished(bench, asks(tools=["local:huge"]))

    told = models.requests[1].messages[-1].content
    assert len(told) < 70_000
    assert "cut: 1000002 bytes" in told


async def test_a_tool_is_called_for_the_run_s_tenant(tmp_path: Path) -> None:
    seen: list[ToolContext] = []

    async def whoami(context: ToolContext) -> str:
        seen.append(context)
        return context.tenant

    models = TestModels(calls(("whoami", {})), says("Me."))
    tool = function_tool(whoami, name="local:whoami")

    async with model_bench(tmp_path, models, [tool]) as bench:
        await finished(bench, asks(tools=["local:whoami"]))

    assert (seen[0].tenant, seen[0].agent_id) == (TENANT, "host:llm:ask")


async def test_an_incapable_model_is_replaced_by_the_fallback(
    tmp_path: Path,
) -> None:
    able = {"test:small": frozenset[str](), "test:big": frozenset({"reasoning"})}
    models = TestModels(says("Deep."), able=able)
    question = asks("chat", requires=["reasoning"], fallbackModel="test:big")

    async with model_bench(tmp_path, models) as bench:
        found = await finished(bench, question)
        [told] = await events(bench, found["runId"], "model.capability.substituted")

    assert (told["originalModel"], told["fallbackModel"]) == ("small", "big")
    assert told["missingCapabilities"] == ["reasoning"]
    assert models.requests[0].model == "big"


async def test_an_incapable_model_without_a_fallback_is_not_called(tmp_path: Path) -> None:
    able = {"test:small": frozenset[str](), "test:tiny": frozenset[str]()}
    models = TestModels(able=able)
    question = asks("chat", requires=["reasoning"], fallbackModel="test:tiny")

    async with model_bench(tmp_path, models) as bench:
        found = await finished(bench, question)
        [told] = await events(bench, found["runId"], "model.capability.insufficient")

    assert told["fallbackAttempted"] is True
    assert found["error"]["code"] == "capability_not_provided"
    assert models.requests == []


async def test_a_mock_provider_replaces_the_models(tmp_path: Path) -> None:
    models = TestModels()
    mock = {"id": "stream-text", "config": {"tokens": ["Hel", "lo"]}}

    nameless = node("ask", "openwop.llm.chat", config={"prompt": "Hi."})

    async with model_bench(tmp_path, models) as bench:
        found = await finished(bench, nameless, mockProvider=mock)

    assert found["outputs"]["ask"]["text"] == "Hello"
    assert models.requests == []


@pytest.mark.parametrize(
    ("mock", "code"),
    [
        ({"id": "error", "config": {"code": "mock_down"}}, "mock_down"),
        ({"id": "tool-calls", "config": {"toolCalls": [{"name": "x"}]}}, "tool_call_invalid"),
    ],
)
async def test_a_mock_provider_s_faults_are_those_of_a_model(
    tmp_path: Path, mock: JsonObject, code: str
) -> None:
    async with model_bench(tmp_path, TestModels()) as bench:
        found = await finished(bench, asks("chat"), mockProvider=mock)

    assert found["error"]["code"] == code


async def test_a_usage_only_mock_returns_no_text_and_counts_tokens(tmp_path: Path) -> None:
    mock = {"id": "usage-only", "config": {"usage": {"promptTokens": 3, "completionTokens": 4}}}

    async with model_bench(tmp_path, TestModels()) as bench:
        found = await finished(bench, asks("chat"), mockProvider=mock)
        [usage] = await events(bench, found["runId"], "provider.usage")

    assert (usage["inputTokens"], usage["outputTokens"]) == (3, 4)


async def test_a_node_without_a_model_or_a_question_names_what_is_missing(tmp_path: Path) -> None:
    silent = node("ask", "openwop.llm.chat", config={"model": "test:small"})
    nameless = node("ask", "openwop.llm.chat", config={"prompt": "Hi."})

    async with model_bench(tmp_path, TestModels()) as bench:
        nothing_asked = await finished(bench, silent)
        nobody_named = await finished(bench, nameless)

    assert "There is no prompt." in nothing_asked["error"]["message"]
    assert "No model is named." in nobody_named["error"]["message"]


async def test_a_retry_continues_with_earlier_requests_and_tool_calls(tmp_path: Path) -> None:
    called: list[int] = []

    async def count(number: int) -> int:
        called.append(number)
        return number

    tool = function_tool(count, name="local:count")
    down = ModelFault("the provider is down")
    models = TestModels(calls(("count", {"number": 1})), down, says("Done."))
    question = asks(tools=["local:count"], maxRetries=0)
    retrying = question | {"settings": {"maxRetries": 1, "backoff": {"initialMs": 1}}}

    async with model_bench(tmp_path, models, [tool]) as bench:
        run_id = await bench.create(await bench.register([retrying]))
        await bench.until_logged(run_id, "node.retried")
        bench.clock.now += 1000
        await bench.wake(run_id)
        await bench.until(run_id, "completed", "failed")
        types = await bench.types(run_id)

    assert called == [1]
    assert len(models.requests) == 3
    assert types.count("agent.toolCalled") == types.count("agent.toolReturned") == 1
    assert types.count("provider.usage") == 2
    assert types.count("agent.invocation.completed") == 2


async def test_a_recorded_answer_is_emitted_once(tmp_path: Path) -> None:
    models = TestModels(says("Hello."))
    async with model_bench(tmp_path, models) as bench:
        store = bench.host.store
        settle, is_settled = store.settle_invocation, anyio.Event()

        async def settle_and_stop(*arguments: Json) -> None:
            await settle(*arguments)
            is_settled.set()
            await anyio.sleep_forever()

        # The one moment at which a crash can occur between the record and the log.
        store.settle_invocation = settle_and_stop  # type: ignore[method-assign, assignment]  # a crash, once
        run_id = await bench.create(await bench.register([asks("chat")]))
        with anyio.fail_after(60):
            await is_settled.wait()

    async with model_bench(tmp_path, models) as bench:
        await bench.until(run_id, "completed", "failed")
        found, types = await bench.snapshot(run_id), await bench.types(run_id)

    assert found["outputs"]["ask"]["text"] == "Hello."
    assert len(models.requests) == 1
    assert types.count("provider.usage") == types.count("output.chunk") == 1
