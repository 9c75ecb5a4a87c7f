"""GenAI spans of a model's agent: requests, tools, tokens, and no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.models.conftest import NewHost
from tests.models.model_runs import run_node
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Say
from tests.support.definitions import fresh
from tests.support.otlp_collector import Collector, attributes
from tests.support.surfaces import CANARIES, leaks
from wopr.protocol.documents import JsonObject

TOOL = "shop:orders"


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def worked(
    new_host: NewHost, server: OpenAiServer, collector: Collector, result: JsonObject, said: str
) -> list[Span]:
    """Let an agent call a tool once and answer, and return the spans of its run."""
    host = new_host(
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
        WOPR_OTEL_CONTENT="1",
    )
    path = f"/{fresh('orders')}"
    server.service.answers[path] = (200, result)
    orders = {
        "name": TOOL,
        "description": "Find orders.",
        "url": f"{server.url}{path}",
        "parameters": {"type": "object"},
    }
    turns = [CallTools((("orders", {"customer": "acme"}),)), Say(said)]
    _, log = run_node(host.wire, server, turns, "agent", {"httpTools": [orders]})
    return collector.of_run(log[0]["runId"])


def of(spans: list[Span], operation: str) -> list[dict[str, Any]]:
    found = [span for span in spans if attributes(span)["gen_ai.operation.name"] == operation]
    return [attributes(span) for span in sorted(found, key=lambda s: s.start_time_unix_nano)]


def genai(spans: list[Span]) -> list[Span]:
    return [span for span in spans if "gen_ai.operation.name" in attributes(span)]


def test_an_agent_s_requests_and_tools_are_child_spans(
    new_host: NewHost, server: OpenAiServer, collector: Collector
) -> None:
    spans = genai(worked(new_host, server, collector, {"orders": [1, 2]}, "Two orders."))

    [agent] = of(spans, "invoke_agent")
    wish, answer = of(spans, "chat")
    [tool] = of(spans, "execute_tool")
    [own] = [span for span in spans if span.name.startswith("invoke_agent")]
    under = [span for span in spans if span.name.startswith(("chat", "execute_tool"))]
    assert {span.parent_span_id for span in under} == {own.span_id}
    assert wish["gen_ai.provider.name"] == agent["gen_ai.provider.name"] == "local"
    assert wish["gen_ai.request.model"] == agent["gen_ai.request.model"]
    assert wish["gen_ai.response.finish_reasons"] == ["tool_calls"]
    used = wish["gen_ai.usage.input_tokens"] + answer["gen_ai.usage.input_tokens"]
    assert agent["gen_ai.usage.input_tokens"] == used > 0
    assert tool["gen_ai.tool.name"] == TOOL
    assert tool["gen_ai.tool.call.arguments"] == '{"customer":"acme"}'
    assert "error.type" not in agent | tool
    chats = [span for span in under if span.name.startswith("chat")]
    [call] = [span for span in under if span.name.startswith("execute_tool")]
    first, last = sorted(chats, key=lambda span: span.start_time_unix_nano)
    assert first.end_time_unix_nano <= call.end_time_unix_nano <= last.end_time_unix_nano


def test_secrets_of_models_and_tools_are_in_no_span(
    new_host: NewHost, server: OpenAiServer, collector: Collector
) -> None:
    spans = worked(new_host, server, collector, {"all": CANARIES}, " ".join(CANARIES.values()))

    assert of(genai(spans), "execute_tool")[0]["gen_ai.tool.call.result"]
    assert of(genai(spans), "invoke_agent")[0]["gen_ai.output.messages"]
    assert leaks(b"".join(span.SerializeToString() for span in spans)) == []
