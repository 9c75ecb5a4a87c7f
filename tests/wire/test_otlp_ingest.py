"""Traces that other systems export over OTLP become observed runs of the fleet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no stubs
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, INGEST, VIEWER, ServedHost, served
from tests.support.kahn import agents_of, stored_lines
from tests.support.otlp import (
    JSON,
    PATH,
    PATIENT,
    PROTOBUF,
    QUICK,
    Request,
    fleet_lines,
    of,
    send,
    send_json,
)
from tests.support.otlp_spans import as_protobuf, export
from tests.support.stored_files import stored
from tests.support.surfaces import CANARIES, leaks
from wopr.protocol.documents import JsonObject

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host that converts complete traces at once and waits long for the others."""
    with served(tmp_path_factory.mktemp("otlp"), "--log-format", "json", **PATIENT) as running:
        yield running


@pytest.fixture
def quick(new_host: Callable[..., ServedHost], connect: Callable[..., Wire]) -> Wire:
    """Connect to a host that waits only briefly for a root."""
    return connect(ACME, new_host(**QUICK))


def refusal(response_body: bytes) -> Status:
    return Status.FromString(response_body)


# The real exporter


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sdk_s_exporter_shows_an_agent_as_an_observed_run(
    host: ServedHost, acme: Wire, compression: Compression
) -> None:
    service, hidden = fresh("sdk"), "the-hidden-prompt"
    exporter = OTLPSpanExporter(
        f"{host.url}{PATH}",
        headers={"Authorization": f"Bearer {INGEST}"},
        compression=compression,
        timeout=60,
    )
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    # Spans of one request are sent in several exports.
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=2))
    tracer = provider.get_tracer("tests")
    begin = tracer.start_as_current_span
    with begin("POST /ask") as root, begin("invoke_agent") as agent:
        agent.set_attribute("gen_ai.operation.name", "invoke_agent")
        agent.set_attribute("gen_ai.agent.name", f"{service}-agent")
        agent.set_attribute("gen_ai.input.messages", hidden)
        with begin("chat m-1") as chat:
            chat.set_attribute("gen_ai.operation.name", "chat")
            chat.set_attribute("gen_ai.request.model", "m-1")
            chat.set_attribute("gen_ai.usage.input_tokens", 11)
            chat.set_attribute("gen_ai.response.finish_reasons", ["stop"])
        with suppress(ValueError), begin("execute_tool search") as tool:
            tool.set_attribute("gen_ai.operation.name", "execute_tool")
            tool.set_attribute("gen_ai.tool.name", "search")
            tool.set_attribute("gen_ai.tool.call.arguments", hidden)
            raise ValueError(hidden)

    provider.shutdown()

    lines = fleet_lines(acme, f"otel-{root.get_span_context().trace_id:032x}")
    [start] = of(lines, "agent_run_start")
    assert (start["agent_id"], start["model"]) == (f"{service}-agent", "m-1")
    [call] = of(lines, "tool_invocation")
    assert (call["tool_name"], call["ok"], call["error"]) == ("search", False, "error")
    assert of(lines, "agent_run_end")[0]["otel_input_tokens"] == 11
    assert hidden not in json.dumps(lines)
    assert leaks(stored(host), hidden) == []
    assert hidden not in host.log()


# Both encodings


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_an_export_is_answered_in_its_own_encoding(acme: Wire, encoding: str) -> None:
    document = export(*Request().all_spans())
    is_json = encoding == "json"
    body = json.dumps(document).encode() if is_json else as_protobuf(document)

    response = send(acme, body, JSON if is_json else PROTOBUF)

    assert response.status_code == 200
    assert response.headers["content-type"] == (JSON if is_json else PROTOBUF)["Content-Type"]
    assert response.content == (b"{}" if is_json else b"")


def test_a_trace_is_listed_with_its_agents_and_can_be_read_as_a_run(acme: Wire) -> None:
    request = Request(fresh("reader"))

    send_json(acme, *request.all_spans())

    fleet_lines(acme, request.run_id)
    [agent] = agents_of(acme, request.run_id)
    assert (agent["agent_id"], agent["outcome"]) == (request.agent, "converged")
    observed = acme.document(f"/api/runs/{request.run_id}")["run"]["openwop_run_id"]
    assert acme.finished(observed)["status"] == "completed"
    assert "agent.toolReturned" in acme.types(observed)


def test_spans_in_several_exports_in_any_order_make_one_run(acme: Wire) -> None:
    request = Request()
    send_json(acme, request.call)
    send_json(acme, request.answer, request.wish)
    send_json(acme, request.call, request.invocation)

    assert stored_lines(acme, request.run_id) == []
    for _ in range(2):
        assert send_json(acme, request.root, request.call).status_code == 200

    lines = fleet_lines(acme, request.run_id)
    assert len(of(lines, "agent_run_start")) == len(of(lines, "tool_invocation")) == 1
    assert send_json(acme, *request.all_spans()).json() == {}


def test_late_spans_are_a_check_after_the_end_of_the_run(acme: Wire) -> None:
    request = Request()
    send_json(acme, request.invocation, request.root, request.answer)
    first = fleet_lines(acme, request.run_id)

    send_json(acme, request.call, request.root)

    eventually(lambda: len(stored_lines(acme, request.run_id)) > len(first))
    *before, late = fleet_lines(acme, request.run_id)
    assert before == first
    assert (late["event"], late["checkpoint_id"]) == ("audit_checkpoint", "otel:late")
    assert late["evidence"] == {"operation": "tool", "tool": "search"}


def test_a_second_invocation_in_a_converted_trace_is_a_second_run(acme: Wire) -> None:
    request = Request()
    send_json(acme, *request.all_spans())
    fleet_lines(acme, request.run_id)

    send_json(acme, request.span(12, 1, 21, 25, {"gen_ai.operation.name": "invoke_agent"}))

    assert len(of(fleet_lines(acme, f"{request.run_id}-2"), "agent_run_end")) == 1


def test_a_trace_without_its_root_is_converted_after_a_timeout(quick: Wire) -> None:
    request = Request()

    send_json(quick, request.call, request.answer)

    lines = fleet_lines(quick, request.run_id)
    assert len(of(lines, "tool_invocation")) == 1
    assert of(lines, "agent_run_end") == []
    [agent] = agents_of(quick, request.run_id)
    assert agent["outcome"] == "unknown"


def test_spans_without_agents_are_accepted_and_not_converted(quick: Wire) -> None:
    request, other = Request(), Request()

    assert send_json(quick, request.root).json() == {}

    send_json(quick, *other.all_spans())
    fleet_lines(quick, other.run_id)
    assert stored_lines(quick, request.run_id) == []


# Authorization


def test_a_push_only_key_can_export_and_a_read_only_key_cannot(
    connect: Callable[..., Wire], host: ServedHost
) -> None:
    body = json.dumps(export(*Request().all_spans())).encode()

    assert send(connect(INGEST, host), body, JSON).status_code == 200
    assert send(connect(VIEWER, host), body, JSON).status_code == 403
    assert send(connect(None, host), body, JSON).status_code == 401


def test_two_tenants_can_export_the_same_trace_and_each_sees_its_own(
    acme: Wire, globex: Wire
) -> None:
    request = Request("shared")

    send_json(acme, *request.all_spans())
    fleet_lines(acme, request.run_id)
    assert stored_lines(globex, request.run_id) == []
    send_json(globex, request.invocation, request.root)

    assert len(fleet_lines(globex, request.run_id)) < len(fleet_lines(acme, request.run_id))


# Invalid exports


def test_unusable_spans_are_counted_and_the_others_accepted(acme: Wire) -> None:
    request = Request()
    broken = [request.call | {"spanId": "00"}, request.call | {"startTimeUnixNano": "0"}]

    answer = send_json(acme, *broken, *request.all_spans()).json()["partialSuccess"]
    response = send(acme, as_protobuf(export(*broken)), PROTOBUF)

    assert answer["rejectedSpans"] == "2"
    assert "span_id" in answer["errorMessage"]
    partial = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, partial.rejected_spans) == (200, 2)
    assert "start_time_unix_nano" in partial.error_message
    assert len(of(fleet_lines(acme, request.run_id), "tool_invocation")) == 1


def test_an_invalid_export_is_refused_in_its_own_encoding(acme: Wire) -> None:
    response = send(acme, b"\x0a", PROTOBUF)
    plain = send(acme, b'{"resourceSpans": 7}', JSON)

    assert (response.status_code, plain.status_code) == (400, 400)
    assert response.headers["content-type"] == "application/x-protobuf"
    assert refusal(response.content).code == 3
    assert "ExportTraceServiceRequest" in refusal(response.content).message
    assert plain.json()["error"] == "validation_error"


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Content-Type": "text/plain"}, "Content-Type"),
        (JSON | {"Content-Encoding": "br"}, "Content-Encoding"),
    ],
)
def test_another_media_type_or_encoding_is_refused(
    acme: Wire, headers: dict[str, str], field: str
) -> None:
    response = send(acme, b"{}", headers)

    assert response.status_code == 415
    assert response.json()["details"]["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not gzip",
        gzip.compress(b"{}")[:-4],
        gzip.compress(b"")[:5],
        gzip.compress(b"") + b"x",
        gzip.compress(b"") * 100_000,
    ],
    ids=["nothing", "text", "cut off", "cut short", "with a tail", "of many members"],
)
def test_invalid_gzip_is_refused(acme: Wire, body: bytes) -> None:
    response = send(acme, body, PROTOBUF | {"Content-Encoding": "gzip"})

    assert response.status_code == 400
    assert "gzip" in refusal(response.content).message


def test_gzip_with_several_members_is_read_completely(acme: Wire) -> None:
    body = json.dumps(export(*Request().all_spans())).encode()
    packed = gzip.compress(body[:100]) + gzip.compress(body[100:])

    assert send(acme, packed, JSON | {"Content-Encoding": "gzip"}).json() == {}


@pytest.mark.parametrize("headers", [JSON, PROTOBUF])
def test_a_gzip_bomb_and_an_oversized_export_are_refused(
    acme: Wire, headers: dict[str, str]
) -> None:
    bomb = gzip.compress(b" " * (200 * MIB), compresslevel=9)
    many = gzip.compress(b" " * MIB) * 10

    statuses = [
        send(acme, bomb, headers | {"Content-Encoding": "gzip"}).status_code,
        send(acme, many, headers | {"Content-Encoding": "gzip"}).status_code,
        send(acme, b" " * (5 * MIB), headers).status_code,
    ]

    assert statuses == [413, 413, 413]


def test_too_many_exports_get_a_retry_time(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, new_host(WOPR_INGEST_RATE_LIMIT="1"))
    answers = [send(wire, b"", PROTOBUF) for _ in range(8)]

    refused = next(each for each in answers if each.status_code == 429)

    assert int(refused.headers["retry-after"]) >= 1
    assert refusal(refused.content).code == 8


def test_a_trace_has_a_maximum_size(acme: Wire) -> None:
    request = Request()
    wide: list[JsonObject] = [request.root | {"spanId": f"{n:016x}"} for n in range(100, 10_100)]
    for start in range(0, len(wide), 5000):
        assert send_json(acme, *wide[start : start + 5000]).json() == {}

    answer = send_json(acme, *request.all_spans()).json()

    assert answer["partialSuccess"]["rejectedSpans"] == "5"
    assert "at most 10000 spans" in answer["partialSuccess"]["errorMessage"]


# Secrets


def test_secrets_in_names_and_in_enabled_content_are_redacted(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(**QUICK, WOPR_OTEL_CONTENT="1")
    wire = connect(ACME, host)
    request = Request()
    planted = {
        "gen_ai.tool.call.arguments": json.dumps(CANARIES),
        "gen_ai.tool.call.result": "the plain result " + " ".join(CANARIES.values()),
        "gen_ai.tool.name": CANARIES["openai"],
        "error.type": CANARIES["github"],
        "gen_ai.input.messages": CANARIES["aws"],
    }
    call = request.span(4, 2, 2, 4, {"gen_ai.operation.name": "execute_tool"} | planted)

    send_json(wire, call, request.invocation, request.root)

    [line] = of(fleet_lines(wire, request.run_id), "tool_invocation")
    assert line["output_summary"].startswith("the plain result")
    assert leaks(json.dumps(line)) == []
    assert leaks(stored(host)) == []
    assert leaks(host.log()) == []


def test_another_tenant_s_key_sees_nothing_of_an_export(
    connect: Callable[..., Wire], host: ServedHost, acme: Wire
) -> None:
    request = Request(fresh("private"))
    send_json(acme, *request.all_spans())
    fleet_lines(acme, request.run_id)
    other = connect(GLOBEX, host)

    seen = [
        other.get("/api/runs", params={"limit": 200}).text,
        other.get("/api/agent-runs/aggregate", params={"window": "all"}).text,
        other.get("/v1/runs", params={"limit": 200}).text,
    ]

    assert leaks("".join(seen), request.agent, request.trace_id) == []
    assert other.get(f"/api/runs/{request.run_id}").status_code == 404
