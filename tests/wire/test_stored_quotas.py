"""Quotas of stored data: everything that a tenant writes is counted, and refused beyond them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, fresh, node, workflow
from tests.support.eventually import eventually
from tests.support.feedback import path_of
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.kahn import KahnRun, push
from tests.support.otlp import Request, send_json
from tests.wire.conftest import Connect
from tests.wire.test_agent_manifests import manifest
from tests.wire.test_quotas import create, refused, until_refused, use
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

NewHost = Callable[..., ServedHost]
LONG_MS = 3_600_000
QUOTA = 100_000
APP = """
from wopr import NodeContext, node


@node("local.artifact")
def artifact(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    ctx.add_artifact("text", "x" * 2000)
    return {}


@node("local.remember")
async def remember(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    await ctx.memory.put("notes", "x" * 100)
    return {}
"""


def identity(size: int) -> JsonObject:
    """Return a node whose output has so many bytes."""
    return node("a", "core.identity", inputs={"value": {"type": "static", "value": "x" * size}})


def definition(version: int, workflow_id: str, size: int = 40_000) -> JsonObject:
    """Return a definition of about so many bytes."""
    made = workflow([identity(size)])
    return {**made, "id": workflow_id, "version": str(version)}


def fill(wire: Wire) -> None:
    """Register versions of a definition until the tenant is over its stored bytes."""
    name = fresh()
    for version in range(1, 4):
        response = wire.post("/v1/workflows", definition(version, name))
        assert response.status_code == 201, response.text


@pytest.fixture(scope="module")
def full_host(module_host: NewHost) -> ServedHost:
    """Start a host with a tenant that is over its stored bytes."""
    host = module_host("--conformance", WOPR_QUOTA_STORED_BYTES=str(QUOTA))
    with Wire(host.url, ACME) as wire:
        wire.run("conformance-noop")
        fill(wire)
    return host


@pytest.fixture
def full(connect: Connect, full_host: ServedHost) -> tuple[Wire, Wire]:
    """Return clients of a tenant that is over its stored bytes, and of another tenant."""
    return connect(ACME, full_host), connect(GLOBEX, full_host)


def is_stored_bytes(response: httpx.Response) -> None:
    assert response.status_code == 429, response.text
    details = refused(response)
    assert (details["quota"], details["limit"]) == ("storedBytes", QUOTA)
    assert details["current"] >= QUOTA


def test_definitions_are_counted_and_refused_beyond_the_quota(
    full: tuple[Wire, Wire],
) -> None:
    wire, other = full
    body = definition(1, fresh())

    is_stored_bytes(wire.post("/v1/workflows", body))
    is_stored_bytes(until_refused(create(wire, "conformance-noop")))
    assert use(wire, "storedBytes")["current"] >= 120_000
    assert wire.post("/v1/workflows:validate", body).json()["valid"]
    assert other.post("/v1/workflows", body).status_code == 201


def test_a_registered_version_can_be_sent_again_beyond_the_quota(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(ACME, new_host(WOPR_QUOTA_STORED_BYTES="10000"))
    body = definition(1, fresh(), 20_000)
    assert wire.post("/v1/workflows", body).status_code == 201

    assert wire.post("/v1/workflows", body).status_code == 200


def test_stored_responses_are_counted(connect: Connect, new_host: NewHost) -> None:
    wire = connect(ACME, new_host())
    wire.post("/v1/workflows", definition(1, fresh()))
    without_key = use(wire, "storedBytes")["current"]

    wire.post("/v1/workflows", definition(1, fresh()), headers={"Idempotency-Key": "once"})

    assert use(wire, "storedBytes")["current"] >= without_key + 80_000


def test_agents_are_refused_beyond_the_stored_bytes(full: tuple[Wire, Wire]) -> None:
    wire, other = full

    is_stored_bytes(wire.post("/v1/agents", manifest()))
    assert other.post("/v1/agents", manifest()).status_code == 201


def test_annotations_are_refused_beyond_the_stored_bytes(full: tuple[Wire, Wire]) -> None:
    wire, _ = full
    run, *_ = wire.document("/v1/runs")["items"]

    is_stored_bytes(wire.post(path_of(run["runId"]), {"signal": {"kind": "flag"}}))


def test_forks_are_refused_beyond_the_stored_bytes(full: tuple[Wire, Wire]) -> None:
    wire, _ = full
    run, *_ = wire.document("/v1/runs")["items"]
    path = f"/v1/runs/{run['runId']}:fork"

    is_stored_bytes(until_refused(lambda: wire.post(path, {"mode": "replay"})))


def test_kahn_lines_and_traces_are_refused_beyond_the_stored_bytes(
    full: tuple[Wire, Wire],
) -> None:
    wire, other = full

    is_stored_bytes(until_refused(lambda: push(wire, *KahnRun().whole())))
    is_stored_bytes(until_refused(lambda: send_json(wire, *Request().all_spans())))
    assert push(other, *KahnRun().whole()).status_code == 200
    assert send_json(other, *Request().all_spans()).status_code == 200


def test_runs_can_be_cancelled_beyond_the_stored_bytes(connect: Connect, new_host: NewHost) -> None:
    wire = connect(ACME, new_host(WOPR_QUOTA_STORED_BYTES=str(QUOTA)))
    run_id = wire.create(wire.register(workflow([delay("wait", LONG_MS)])))
    fill(wire)

    answer = wire.post(f"/v1/runs/{run_id}/cancel", headers={"Idempotency-Key": "stop"})

    assert answer.status_code == 200
    assert wire.finished(run_id)["status"] == "cancelled"


@pytest.mark.parametrize("field", ["correction", "label", "note"])
def test_a_long_text_of_an_annotation_is_refused_with_its_field_and_the_limit(
    acme: Wire, field: str
) -> None:
    path = path_of(str(acme.run("conformance-noop")["runId"]))

    def annotate(text: str) -> httpx.Response:
        if field == "note":
            return acme.post(path, {"signal": {"kind": "flag"}, "note": text})
        return acme.post(path, {"signal": {"kind": field, field: text}})

    longest, longer = annotate("é" * 32_768), annotate("é" * 32_769)

    assert longest.status_code == 201
    assert longer.status_code == 400
    place = field if field == "note" else f"signal.{field}"
    assert longer.json()["details"]["field"] == place
    assert place in longer.json()["message"]
    assert "65536" in longer.json()["message"]


def test_the_versions_of_definitions_have_a_quota(connect: Connect, new_host: NewHost) -> None:
    host = new_host(WOPR_QUOTA_WORKFLOW_VERSIONS="2")
    wire = connect(ACME, host)
    name = fresh()

    answers = [wire.post("/v1/workflows", definition(n, name, 10)) for n in (1, 2, 2, 3)]

    assert [answer.status_code for answer in answers] == [201, 201, 200, 429]
    details = refused(answers[-1])
    assert (details["quota"], details["limit"], details["current"]) == ("workflowVersions", 2, 2)
    assert use(wire, "workflowVersions")["current"] == 2
    assert connect(GLOBEX, host).post("/v1/workflows", definition(1, name)).status_code == 201


def test_agents_have_a_quota(connect: Connect, new_host: NewHost) -> None:
    host = new_host(WOPR_QUOTA_AGENTS="1")
    wire = connect(ACME, host)
    first = manifest()

    answers = [wire.post("/v1/agents", each) for each in (first, first, manifest())]

    assert [answer.status_code for answer in answers] == [201, 200, 429]
    details = refused(answers[-1])
    assert (details["quota"], details["limit"], details["current"]) == ("agents", 1, 1)
    assert use(wire, "agents")["current"] == 1
    assert connect(GLOBEX, host).post("/v1/agents", manifest()).status_code == 201


def test_a_tenant_with_too_many_queued_runs_cannot_start_runs(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_QUOTA_QUEUED_RUNS="3")
    wire = connect(ACME, host)
    key = host.command("keys", "create", "--tenant", "ops", "--scope", "quotas:manage").split()[0]
    nodes = [delay("wait", 2000), *(node(f"n{n}") for n in range(10))]
    sleeps = wire.register(workflow(nodes))
    for _ in range(20):
        wire.create(sleeps)
    # From now on due runs wait for a slot.
    connect(key, host).request("PUT", "/v1/quotas/acme/eventsPerSecond", json={"limit": 1})
    found: list[httpx.Response] = []

    def is_refused() -> bool:
        found[:] = [create(wire, sleeps)()]
        body = found[0].json()
        return found[0].status_code == 429 and body["details"]["quota"] == "queuedRuns"

    eventually(is_refused)
    details = refused(found[0])

    assert (details["quota"], details["limit"]) == ("queuedRuns", 3)
    assert details["current"] >= 3
    # A stop would wait for the delayed runs.
    host.kill()


def test_a_tenant_with_too_many_artifact_bytes_cannot_start_runs(
    connect: Connect, new_host: NewHost, tmp_path: Path
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    host = new_host("--app", str(app), WOPR_QUOTA_ARTIFACT_BYTES="3000")
    wire = connect(ACME, host)
    writes = wire.register(workflow([node("write", "local.artifact")]))

    details = refused(until_refused(create(wire, writes)))

    assert (details["quota"], details["limit"]) == ("artifactBytes", 3000)
    assert details["current"] >= 3000
    assert use(wire, "artifactBytes")["current"] >= details["current"]


def test_a_node_of_a_tenant_over_its_stored_bytes_cannot_write_memory(
    connect: Connect, new_host: NewHost, tmp_path: Path
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    host = new_host("--app", str(app), WOPR_QUOTA_STORED_BYTES=str(QUOTA))
    wire = connect(ACME, host)
    nodes = [delay("wait", 3000), node("write", "local.remember")]
    run_id = wire.create(wire.register(workflow(nodes)))
    fill(wire)

    ended = wire.finished(run_id)

    assert (ended["status"], ended["error"]["code"]) == ("failed", "quota_exceeded")
    assert "storedBytes" in ended["error"]["message"]


@pytest.mark.parametrize(
    ("quota", "setting", "limit", "first"),
    [
        ("storedBytes", "WOPR_QUOTA_STORED_BYTES", QUOTA, identity(90_000)),
        ("artifactBytes", "WOPR_QUOTA_ARTIFACT_BYTES", 1000, node("write", "local.artifact")),
    ],
    ids=["storedBytes", "artifactBytes"],
)
def test_a_child_run_beyond_a_quota_of_bytes_fails_the_node_of_its_parent(
    connect: Connect,
    new_host: NewHost,
    tmp_path: Path,
    quota: str,
    setting: str,
    limit: int,
    first: JsonObject,
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    wire = connect(ACME, new_host("--app", str(app), **{setting: str(limit)}))
    child = wire.register(workflow([node("a")]))
    call = node("call", "core.subWorkflow", config={"workflowId": child})
    parent = wire.register(workflow([first, delay("wait", 100), call]))

    ended = wire.run(parent)

    assert (ended["status"], ended["error"]["code"]) == ("failed", "quota_exceeded")
    assert quota in ended["error"]["message"]
    details = ended["error"]["details"]
    assert (details["quota"], details["limit"]) == (quota, limit)
    assert [run["runId"] for run in wire.document("/v1/runs")["items"]] == [ended["runId"]]


def test_metrics_show_the_usage_of_all_tenants_against_their_quotas(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_QUOTA_WORKFLOW_VERSIONS="1", WOPR_METRICS_OPEN="true")
    for key in (ACME, GLOBEX):
        connect(key, host).post("/v1/workflows", definition(1, fresh()))

    text = httpx.get(f"{host.url}/metrics").text

    def gauge(name: str, quota: str) -> float:
        found = re.search(rf'^{name}{{quota="{quota}"}} (\S+)$', text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    assert gauge("wopr_quota_used", "workflowVersions") == 2
    assert gauge("wopr_quota_limit", "workflowVersions") == 2
    assert gauge("wopr_quota_tenants_full", "workflowVersions") == 2
    assert gauge("wopr_quota_used", "storedBytes") >= 80_000
    assert gauge("wopr_quota_tenants_full", "storedBytes") == 0
    assert "acme" not in text
