"""Exported traces: agents, model requests and tool calls as GenAI spans, without content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.support.agent_definitions import agent_name, mock, scripted
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, ServedHost, kept_port
from tests.support.kahn import stored_lines
from tests.support.otlp import PATIENT, QUICK, Request, fleet_lines, send_json
from tests.support.otlp_collector import Collector, attributes
from tests.support.surfaces import CANARIES, leaks
from wopr.protocol.documents import Json, JsonObject

NewHost = Callable[..., ServedHost]
Connect = Callable[..., Wire]
HIDDEN = "the-hidden-argument"
ECHO: JsonObject = {
    "toolId": "openwop.echo:echo",
    "arguments": {"x": HIDDEN},
    "result": {"x": HIDDEN},
    "durationMs": 5,
}
BOOM: JsonObject = {
    "toolId": "openwop.echo:echo",
    "arguments": {"x": 2},
    "error": {"error": "boom", "message": HIDDEN},
}
STEPS: JsonObject = {
    "mockReasoning": {"summary": HIDDEN},
    "mockToolCalls": [ECHO, BOOM],
    "mockDecision": {"decision": {"next": HIDDEN}, "confidence": 1},
}


class Traced(NamedTuple):
    """A host, and the collector of its traces."""

    host: ServedHost
    collector: Collector


@contextmanager
def traced(module_host: NewHost, **variables: str) -> Iterator[Traced]:
    with closing(Collector()) as collector:
        exports = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        yield Traced(module_host("--conformance", **exports, **variables), collector)


@pytest.fixture(scope="module")
def without_content(module_host: NewHost) -> Iterator[Traced]:
    """Start a host with the default, which exports no content."""
    with traced(module_host) as running:
        yield running


@pytest.fixture(scope="module")
def with_content(module_host: NewHost) -> Iterator[Traced]:
    """Start a host that exports content."""
    with traced(module_host, WOPR_OTEL_CONTENT="1") as running:
        yield running


def operations(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if attributes(span).get("gen_ai.operation.name") == name]


def acted(wire: Wire, agent_id: str, config: JsonObject = STEPS) -> str:
    """Run a mock agent and return the run's id."""
    definition = scripted([mock("actor", {"agentId": agent_id}, **config)])
    run_id: str = wire.run(wire.register(definition))["runId"]
    return run_id


def spoken(wire: Wire, **mocked: Json) -> str:
    """Run a node that calls a mock model, and return the run's id."""
    provider = {"id": "stream-text", "config": {"tokens": ["Hel", HIDDEN], "model": "m-1"} | mocked}
    found = wire.run("conformance-stream-text", configurable={"mockProvider": provider})
    run_id: str = found["runId"]
    return run_id


def test_an_agent_s_work_is_a_span_of_its_node_with_its_tools_as_children(
    without_content: Traced, connect: Connect
) -> None:
    wire, agent_id = connect(ACME, without_content.host), agent_name()
    run_id = acted(wire, agent_id)

    spans = without_content.collector.of_run(run_id)

    [workflow_span] = operations(spans, "invoke_workflow")
    [agent] = operations(spans, "invoke_agent")
    good, bad = operations(spans, "execute_tool")
    [own] = [span for span in spans if span.name == "openwop.node"]
    assert workflow_span.name == "openwop.run"
    assert own.parent_span_id == workflow_span.span_id
    assert agent.parent_span_id == own.span_id
    assert {good.parent_span_id, bad.parent_span_id} == {agent.span_id}
    assert {span.trace_id for span in spans} == {workflow_span.trace_id}
    assert agent.name == f"invoke_agent {agent_id}"
    assert attributes(agent)["gen_ai.agent.id"] == agent_id
    assert attributes(agent)["gen_ai.conversation.id"] == run_id
    assert good.name == "execute_tool openwop.echo:echo"
    assert attributes(good)["gen_ai.tool.name"] == "openwop.echo:echo"
    assert attributes(good)["gen_ai.tool.call.id"] != attributes(bad)["gen_ai.tool.call.id"]
    assert attributes(bad)["error.type"] == "boom"
    assert bad.status.code == Status.STATUS_CODE_ERROR
    assert agent.start_time_unix_nano <= good.start_time_unix_nano <= good.end_time_unix_nano
    assert good.end_time_unix_nano <= agent.end_time_unix_nano
    assert HIDDEN not in str(spans)


def test_a_model_request_is_a_span_with_its_tokens_and_cost(
    without_content: Traced, connect: Connect
) -> None:
    wire = connect(ACME, without_content.host)
    usage = {"promptTokens": 3, "completionTokens": 4, "totalTokens": 7}
    run_id = spoken(wire, usage=usage)

    spans = without_content.collector.of_run(run_id)

    [chat] = operations(spans, "chat")
    found = attributes(chat)
    assert chat.name == "chat m-1"
    assert chat.kind == Span.SPAN_KIND_CLIENT
    assert (found["gen_ai.request.model"], found["gen_ai.response.model"]) == ("m-1", "m-1")
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (3, 4)
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["openwop.cost.tokens.total"] == 7
    assert found["openwop.cost.provider"] == found["gen_ai.provider.name"]
    [run] = operations(spans, "invoke_workflow")
    assert attributes(run)["openwop.cost.tokens.input"] == 3
    assert HIDDEN not in str(spans)


def test_content_is_in_spans_only_when_enabled(with_content: Traced, connect: Connect) -> None:
    wire = connect(ACME, with_content.host)

    spans = with_content.collector.of_run(acted(wire, agent_name()))
    talk = with_content.collector.of_run(spoken(wire))

    tool = attributes(operations(spans, "execute_tool")[0])
    assert tool["gen_ai.tool.call.arguments"] == f'{{"x":"{HIDDEN}"}}'
    assert HIDDEN in tool["gen_ai.tool.call.result"]
    assert HIDDEN in attributes(operations(spans, "invoke_agent")[0])["gen_ai.output.messages"]
    assert f"Hel{HIDDEN}" in attributes(operations(talk, "chat")[0])["gen_ai.output.messages"]


@pytest.mark.parametrize("content", ["without_content", "with_content"])
def test_secrets_are_in_no_span_attribute_name_or_error(
    request: pytest.FixtureRequest, connect: Connect, content: str
) -> None:
    host, collector = request.getfixturevalue(content)
    wire = connect(ACME, host)
    canaries = list(CANARIES.values())
    failing = {
        "mockProvider": {"id": "error", "config": {"code": canaries[6], "message": canaries[2]}}
    }
    runs = [
        spoken(wire, tokens=canaries, model=CANARIES["openai"]),
        wire.run("conformance-stream-text", configurable=failing)["runId"],
        wire.run("conformance-identity", {"payload": CANARIES})["runId"],
    ]

    spans = [span for run_id in runs for span in collector.of_run(run_id)]

    assert len(operations(spans, "invoke_workflow")) == len(runs)
    assert leaks(str(spans)) == []
    assert leaks(b"".join(span.SerializeToString() for span in spans)) == []
    assert leaks(host.log()) == []


def test_masked_values_stay_masked_when_content_is_enabled(
    with_content: Traced, connect: Connect
) -> None:
    wire = connect(ACME, with_content.host)
    sealed = "a-value-that-is-sealed"
    definition = scripted(
        [mock("actor", None, **STEPS | {"mockDecision": {"decision": sealed, "confidence": 1}})],
        variables=[{"name": "pin", "type": "string", "sensitive": True, "defaultValue": sealed}],
    )
    run_id = wire.run(wire.register(definition))["runId"]

    spans = with_content.collector.of_run(run_id)

    assert operations(spans, "invoke_agent")
    assert sealed not in str(spans)


# From one host to another


def test_spans_exported_to_another_host_show_the_same_agents(
    new_host: NewHost, connect: Connect
) -> None:
    # It waits for the end of the trace, which may arrive in several exports.
    second = new_host(**PATIENT)
    first = new_host(
        "--conformance",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"{second.url}/v1/fleet/otlp",
        OTEL_EXPORTER_OTLP_HEADERS=f"Authorization=Bearer {ACME}",
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    here, there = connect(ACME, first), connect(ACME, second)
    agent_id = agent_name()
    run_id = acted(here, agent_id)
    eventually(lambda: bool(there.document("/api/runs")["runs"]))

    [run] = there.document("/api/runs")["runs"]
    lines = fleet_lines(there, run["run_id"])
    [row] = there.document("/api/agent-runs/aggregate")["agents"]
    eventually(partial(_is_told, here, run_id))
    [own] = here.document("/api/agent-runs/aggregate")["agents"]

    assert row["agent_id"] == own["agent_id"]
    assert row["run_count"] == own["run_count"] == 1
    started = lines[0]
    assert (started["openwop_agent_id"], started["openwop_run_id"]) == (agent_id, run_id)
    tools = [line["tool_name"] for line in lines if line["event"] == "tool_invocation"]
    assert tools == ["openwop.echo:echo"] * 2


def _is_told(wire: Wire, run_id: str) -> bool:
    return bool(stored_lines(wire, run_id))


def test_a_host_that_exports_to_itself_counts_nothing_twice(
    new_host: NewHost, connect: Connect
) -> None:
    port = kept_port()
    host = new_host(
        *("--conformance", "--port", str(port)),
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}/v1/fleet/otlp",
        OTEL_EXPORTER_OTLP_HEADERS=f"Authorization=Bearer {ACME}",
        OTEL_BSP_SCHEDULE_DELAY="50",
        **QUICK,
    )
    wire = connect(ACME, host)
    foreign = Request()

    run_id = acted(wire, agent_name())
    eventually(partial(_is_told, wire, run_id))
    eventually(lambda: 'operation="exportTraces",status="200"' in wire.metrics())
    # Traces are converted in the order in which they arrived.
    send_json(wire, *foreign.all_spans())
    fleet_lines(wire, foreign.run_id)

    runs = wire.document("/api/runs")["runs"]
    assert sorted(run["run_id"] for run in runs) == sorted([run_id, foreign.run_id])
