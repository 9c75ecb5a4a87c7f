from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.host import ACME, LIVE, ServedHost
from tests.support.interrupts import until_waiting
from tests.support.otlp_collector import Collector, attributes
from wopr.protocol.runs import RUN_STATUSES, TERMINAL

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
PRIVATE = "the-private-word-of-this-input"


# Metrics


def _sample(wire: Wire, name: str) -> float:
    """Return the value of one line of the metrics."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", wire.metrics(), re.MULTILINE)
    return 0.0 if found is None else float(found[1])


@pytest.mark.parametrize(
    ("name", "workflow_id"),
    [
        ("wopr_runs_created_total", "conformance-noop"),
        ("wopr_events_appended_total", "conformance-noop"),
        ('wopr_runs_ended_total{status="completed"}', "conformance-noop"),
        ('wopr_runs_ended_total{status="failed"}', "conformance-failure"),
        ('wopr_http_request_seconds_count{operation="createRun",status="201"}', "conformance-noop"),
    ],
)
def test_each_run_increases_the_counters(acme: Wire, name: str, workflow_id: str) -> None:
    before = _sample(acme, name)

    acme.run(workflow_id)

    assert _sample(acme, name) > before


def test_open_runs_are_counted_until_they_end(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, new_host("--conformance"))
    name = 'wopr_runs_open{status="waiting-approval"}'
    run_id = wire.create("conformance-approval")
    until_waiting(wire, run_id)
    waits = _sample(wire, name)

    wire.post(f"/v1/runs/{run_id}/cancel")
    wire.finished(run_id)

    assert (waits, _sample(wire, name)) == (1, 0)
    told = re.findall(r'^wopr_runs_open\{status="(.+)"\}', wire.metrics(), re.MULTILINE)
    assert set(told) == set(RUN_STATUSES) - TERMINAL


def test_refusals_are_counted_by_status(acme: Wire) -> None:
    name = 'wopr_http_request_seconds_count{operation="getRun",status="404"}'
    before = _sample(acme, name)

    acme.get("/v1/runs/nowhere")

    assert _sample(acme, name) == before + 1


def test_cancelled_runs_and_open_streams_are_counted(acme: Wire) -> None:
    name = 'wopr_runs_ended_total{status="cancelled"}'
    before = _sample(acme, name)
    run_id = acme.create("conformance-cancellable")

    with acme.stream(run_id) as frames:
        next(frames)
        readers = _sample(acme, "wopr_stream_readers")
    acme.post(f"/v1/runs/{run_id}/cancel")

    assert readers >= 1
    assert _sample(acme, name) > before


def test_metrics_contain_no_ids_and_no_content(acme: Wire) -> None:
    tag = fresh("tag")
    found = acme.run("conformance-identity", {"payload": {"w": PRIVATE}}, tags=[tag])

    text = acme.metrics()

    assert not [word for word in (found["runId"], tag, PRIVATE, "acme") if word in text]


# Logs


LIBRARY_LINE = """
import logging
from wopr.process.logs import configure_logs
configure_logs({format!r}, "warning")
logging.getLogger("psycopg.pool").warning("error connecting\\nto %s", "postgresql://wopr:hunter2@db/x")
"""


def logged_by_a_library(log_format: str) -> str:
    """Return the log after a library wrote one line of two rows."""
    script = LIBRARY_LINE.format(format=log_format)
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stderr


def test_a_library_s_log_line_has_the_standard_format_and_no_credentials() -> None:
    [line] = logged_by_a_library("json").splitlines()
    entry = json.loads(line)

    assert entry["event"] == "error connecting\nto postgresql://wopr:[REDACTED]@db/x"
    assert (entry["level"], entry["logger"]) == ("warning", "psycopg.pool")
    assert entry["timestamp"].endswith("Z")
    assert "[warning  ] error connecting" in logged_by_a_library("text")


def test_log_lines_are_json_objects_with_run_ids_and_without_secrets_or_inputs(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", "--log-format", "json", "--log-level", "debug")
    wire = connect(ACME, host)
    found = wire.run(
        "conformance-identity", {"payload": {"w": PRIVATE}}, metadata={"m": PRIVATE}, tags=[PRIVATE]
    )
    wire.run("conformance-failure")
    wire.post("/v1/runs", {"workflowId": PRIVATE}, headers={"Idempotency-Key": "a-key-to-hide"})
    connect("wopr_live_unknown_key_0123456789", host).get("/v1/runs")
    connect(LIVE, host).get("/v1/runs", params={"tag": PRIVATE})

    lines = host.log().splitlines()

    entries = [json.loads(line) for line in lines]
    assert all(isinstance(entry, dict) and entry["event"] and entry["level"] for entry in entries)
    assert found["runId"] in {entry.get("run_id") for entry in entries}
    requests = [entry for entry in entries if entry["event"] == "request"]
    assert {"operation", "method", "route", "status", "ms", "key_id"} <= requests[0].keys()
    hidden = (ACME, LIVE, PRIVATE, "wopr_live_unknown", "a-key-to-hide")
    assert not [word for word in hidden if word in host.log()]


def test_the_readable_log_omits_ordinary_requests(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    connect(ACME, host).run("conformance-noop")

    assert "createRun" not in host.log()


def test_health_and_readiness_answer(anonymous: Wire) -> None:
    assert anonymous.document("/healthz")["status"] == "ok"
    assert anonymous.document("/readyz")["status"] == "ready"


# Traces


def test_a_run_and_its_nodes_become_spans_of_the_caller_s_trace(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire], collector: Collector
) -> None:
    host = new_host(
        "--conformance",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="100",
        OTEL_EXPORTER_OTLP_HEADERS="",
    )
    wire = connect(ACME, host)
    definition = workflow([node("first"), node("second", "core.fail", config={"message": PRIVATE})])
    run_id = wire.create(wire.register(definition), headers={"traceparent": TRACEPARENT})
    wire.finished(run_id)

    spans = collector.of_run(run_id)

    (run,) = [span for span in spans if span.name == "openwop.run"]
    nodes = {attributes(s)["openwop.node_id"]: s for s in spans if s.name == "openwop.node"}
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert run.parent_span_id.hex() == PARENT_ID
    assert {span.parent_span_id for span in nodes.values()} == {run.span_id}
    assert attributes(run)["openwop.workflow_id"] == definition["id"]
    assert attributes(run)["openwop.run_status"] == "failed"
    assert nodes.keys() == {"first", "second"}
    assert attributes(nodes["second"])["openwop.node_type"] == "core.fail"
    assert attributes(nodes["second"])["openwop.node_status"] == "failed"
    assert run.start_time_unix_nano <= nodes["first"].start_time_unix_nano
    assert nodes["second"].end_time_unix_nano <= run.end_time_unix_nano
    assert not [span for span in spans if PRIVATE in str(span)]


def test_pending_spans_are_exported_when_the_host_stops(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire], collector: Collector
) -> None:
    host = new_host(
        "--conformance",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="60000",
    )
    run_id = connect(ACME, host).run("conformance-noop")["runId"]

    host.stop()

    assert len(collector.of_run(run_id)) == 2


def test_an_unreachable_collector_does_not_delay_a_run(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(
        "--conformance",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )

    assert connect(ACME, host).run("conformance-noop")["status"] == "completed"


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs/nowhere", "/.well-known/openwop"])
def test_the_caller_s_trace_is_named_in_the_response(acme: Wire, path: str) -> None:
    response = acme.get(path, headers={"traceparent": TRACEPARENT})

    assert response.headers["traceparent"].split("-")[1] == TRACE_ID


@pytest.mark.parametrize("value", ["nonsense", "00-0-0-00", "x" * 3000, "00-\xe9"])
def test_an_invalid_traceparent_is_neither_stored_nor_returned(acme: Wire, value: str) -> None:
    headers = {"traceparent": value.encode("latin-1")}

    response = acme.post("/v1/runs", {"workflowId": "conformance-noop"}, headers=headers)

    assert response.status_code == 201
    assert "traceparent" not in response.headers
    assert value not in str(acme.log(response.json()["runId"]))


def test_a_stream_names_the_caller_s_trace_too(acme: Wire) -> None:
    run_id = acme.create("conformance-noop")

    response = acme.get(f"/v1/runs/{run_id}/events", headers={"traceparent": TRACEPARENT})

    assert response.headers["traceparent"].split("-")[1] == TRACE_ID
