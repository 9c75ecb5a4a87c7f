"""OTLP exports in both encodings, and the stored facts of their spans."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.otlp_spans import as_protobuf, export, otlp_span, pairs
from wopr.kahn.otlp.spans import (
    Encoding,
    Evaluation,
    SpanFacts,
    UnusableSpan,
    facts_of,
    read_export,
)
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Refused

TOOL: JsonObject = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.agent.id": "asst_1",
    "gen_ai.agent.name": "Helper",
    "gen_ai.tool.name": "search",
    "gen_ai.tool.call.id": "call-1",
    "gen_ai.tool.call.arguments": "the arguments",
    "gen_ai.tool.call.result": "the result",
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.response.finish_reasons": ["stop", "length"],
    "gen_ai.input.messages": "a prompt",
    "error.type": "timeout",
    "http.request.header.authorization": "Bearer hidden",
}
ENCODINGS: list[Encoding] = ["protobuf", "json"]


def body_of(document: JsonObject, encoding: Encoding) -> bytes:
    return json.dumps(document).encode() if encoding == "json" else as_protobuf(document)


def facts(document: JsonObject, encoding: Encoding = "json", **options: Json) -> SpanFacts:
    [span] = read_export(body_of(document, encoding), encoding)
    return facts_of(span, **options)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_both_encodings_have_the_same_meaning(encoding: Encoding) -> None:
    verdict = {"gen_ai.evaluation.name": "Relevance", "gen_ai.evaluation.score.value": 0.5}
    note = {"name": "gen_ai.evaluation.result", "attributes": pairs(verdict)}
    other = {"name": "exception", "attributes": pairs({"exception.message": "hidden"})}
    found = facts(export(otlp_span(3, 2, TOOL, events=[note, other])), encoding)

    assert found == SpanFacts(
        span_id="0000000000000003",
        parent_id="0000000000000002",
        kind="tool",
        start=1_800_000_001_000_000_000,
        end=1_800_000_002_000_000_000,
        agent="asst_1",
        name="Helper",
        service="shop",
        tool="search",
        call_id="call-1",
        error="timeout",
        finish=("stop", "length"),
        input_tokens=12,
        evaluations=(Evaluation(name="Relevance", score=0.5),),
    )


def test_an_invalid_id_is_no_parent() -> None:
    document = export(otlp_span(3, 2, TOOL) | {"parentSpanId": "a" * 100_000})

    assert facts(document).parent_id == ""


def test_only_some_of_many_evaluations_are_kept_and_one_without_measure_has_no_score() -> None:
    verdict = {"gen_ai.evaluation.score.value": 10**18}
    notes = [{"name": "gen_ai.evaluation.result", "attributes": pairs(verdict)}] * 1000
    notes[0] = {
        "name": "gen_ai.evaluation.result",
        "attributes": [{"key": "gen_ai.evaluation.score.value", "value": {"intValue": 10**400}}],
    }

    found = facts(export(otlp_span(3, 2, TOOL, events=notes)))

    assert [each.score for each in found.evaluations] == [None, *[1e18] * 15]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_content_is_dropped_unless_requested_and_then_cleaned(encoding: Encoding) -> None:
    document = export(otlp_span(3, 2, TOOL))

    without = facts(document, encoding)
    with_it = facts(document, encoding, keeps_content=True, redact=lambda text: text.upper())

    assert (without.arguments, without.result) == ("", "")
    assert (with_it.arguments, with_it.result) == ("THE ARGUMENTS", "THE RESULT")
    assert "prompt" not in str(with_it).lower()
    assert "hidden" not in str(with_it)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_span_without_agents_keeps_only_its_position(encoding: Encoding) -> None:
    found = facts(export(otlp_span(3, 2, {"http.route": "/hidden"})), encoding)

    assert found == SpanFacts(span_id="0000000000000003", parent_id="0000000000000002")


@pytest.mark.parametrize(
    ("attributes", "agent"),
    [
        ({"gen_ai.agent.id": "a-1", "gen_ai.agent.name": "Anna"}, "a-1"),
        ({"gen_ai.agent.name": "Anna"}, "Anna"),
        ({}, "shop"),
    ],
)
def test_an_agent_is_identified_by_its_id_its_name_or_its_service(
    attributes: JsonObject, agent: str
) -> None:
    found = facts(export(otlp_span(1, 0, {"gen_ai.operation.name": "invoke_agent"} | attributes)))

    assert (found.kind, found.agent) == ("agent", agent)


def test_an_error_status_without_a_type_is_an_error_without_its_message() -> None:
    chat = {"gen_ai.operation.name": "chat"}
    found = facts(export(otlp_span(1, 0, chat, status={"code": 2, "message": "hidden"})))

    assert found.error == "error"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "changed",
    [
        {"traceId": "00" * 16},
        {"traceId": "ab" * 8},
        {"spanId": ""},
        {"startTimeUnixNano": "0"},
        {"endTimeUnixNano": str(2**64 - 1)},
    ],
)
def test_an_agent_span_without_ids_or_time_is_refused(
    encoding: Encoding, changed: JsonObject
) -> None:
    with pytest.raises(UnusableSpan):
        facts(export(otlp_span(1, 0, TOOL, **changed)), encoding)


def test_an_id_that_is_not_hex_is_refused() -> None:
    with pytest.raises(UnusableSpan):
        facts(export(otlp_span(1, 0, TOOL, traceId="z" * 32)))


@pytest.mark.parametrize("parent", ["0" * 16, "", None])
def test_a_parent_of_zeros_means_no_parent(parent: Json) -> None:
    assert facts(export(otlp_span(1, 0, TOOL, parentSpanId=parent))).parent_id == ""


@pytest.mark.parametrize(
    "value",
    [
        {"intValue": "-7"},
        {"boolValue": True},
        {"doubleValue": "NaN"},
        {"stringValue": None},
        {"arrayValue": {"values": [{"arrayValue": {}}, {"intValue": 4}]}},
        {"kvlistValue": {}},
        None,
    ],
)
def test_an_attribute_of_an_unexpected_type_is_ignored(value: Json) -> None:
    document = export(otlp_span(1, 0, {"gen_ai.operation.name": "chat"}))
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    names = ("gen_ai.usage.input_tokens", "gen_ai.tool.name", "gen_ai.response.finish_reasons")
    span["attributes"] += [{"key": name, "value": value} for name in names]

    found = facts(document)

    assert (found.input_tokens, found.tool, found.finish) == (0, "", ())


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"\x0a", "protobuf"),
        (b"{}", "protobuf"),
        (b"", "json"),
        (b"[]", "json"),
        (b'{"resourceSpans": 7}', "json"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "x"}]}]}]}', "json"),
        (b'{"resourceSpans":' + b"[" * 100_000, "json"),
        (b'{"resourceSpans": "\xff"}', "json"),
    ],
)
def test_a_body_that_is_not_an_export_is_refused(body: bytes, encoding: Encoding) -> None:
    with pytest.raises(Refused):
        read_export(body, encoding)


@pytest.mark.parametrize(("body", "encoding"), [(b"", "protobuf"), (b"{}", "json")])
def test_an_empty_export_has_no_spans(body: bytes, encoding: Encoding) -> None:
    assert read_export(body, encoding) == []


def test_the_span_builders_of_these_tests_match_the_sdk() -> None:
    request = ExportTraceServiceRequest.FromString(as_protobuf(export(otlp_span(3, 2, TOOL))))

    [span] = request.resource_spans[0].scope_spans[0].spans
    assert span.span_id.hex() == "0000000000000003"
