"""The debug bundle: everything about a run, redacted, limited, and for its tenant only."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from tests.support.host import ACME, INGEST, VIEWER, ServedHost
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

LARGEST_BYTES = 8_000_000
# Statuses that the published schema of the bundle lacks, unlike that of the snapshot.
BEYOND_THE_SCHEMA = {"paused", "cancelling", "waiting-input", "waiting-external"}
CANARIES = [
    "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "CANARY-openwop-CONFORMANCE-NEVER-SECRET",
]


def bundle(wire: Wire, run_id: str, **params: int) -> JsonObject:
    found = wire.document(f"/v1/runs/{run_id}/debug-bundle", params=params)
    if found["run"]["status"] not in BEYOND_THE_SCHEMA:
        wire.recorder.check("debug-bundle.schema.json", found)
    return found


def test_a_bundle_contains_the_run_and_its_whole_log(acme: Wire) -> None:
    run_id = acme.run("conformance-multi-node")["runId"]

    found = bundle(acme, run_id)

    log = acme.log(run_id)
    shown = acme.snapshot(run_id)
    shown.pop("inputs", None)
    assert found["bundleVersion"] == "1.0"
    assert found["host"]["name"] == "wopr"
    assert found["run"] == shown
    assert found["events"] == log == acme.poll(run_id)["events"]
    assert found["metrics"] == {"nodeCount": 3, "eventCount": len(log)}
    assert found["truncated"] is False
    assert "truncatedReason" not in found
    assert (found["redactionApplied"], found["redactionMode"]) == (False, "mask")
    assert found["annotations"] == []


def test_a_bundle_must_not_be_cached(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    response = acme.get(f"/v1/runs/{run_id}/debug-bundle")

    assert response.headers["cache-control"] == "no-store"
    assert acme.document("/.well-known/openwop")["debugBundle"] == {"supported": True}


def test_a_bundle_has_a_span_for_the_run_and_one_for_each_node_that_ran(acme: Wire) -> None:
    run_id = acme.run("conformance-multi-node")["runId"]

    root, *nodes = bundle(acme, run_id)["spans"]

    assert (root["name"], root["parentSpanId"]) == ("openwop.run", None)
    assert [span["attributes"]["openwop.node_id"] for span in nodes] == ["a", "b", "c"]
    assert {span["parentSpanId"] for span in nodes} == {root["spanId"]}
    assert all(span["startedAt"] <= span["endedAt"] for span in (root, *nodes))


def test_a_bundle_shows_the_cost_of_models(acme: Wire) -> None:
    provider = {"id": "stream-text", "config": {"tokens": ["a", "b"], "delayMsPerToken": 1}}
    run_id = acme.run("conformance-stream-text", configurable={"mockProvider": provider})["runId"]

    assert bundle(acme, run_id)["metrics"]["openwopCost"]["tokens"]["output"] >= 1


def test_a_bundle_contains_the_run_s_annotations(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    made = acme.post(
        f"/v1/runs/{run_id}/annotations",
        {"signal": {"kind": "rating", "rating": 2}, "note": f"leaks {CANARIES[0]}"},
    ).json()

    found = bundle(acme, run_id)

    assert found["annotations"] == [made]
    assert found["redactionApplied"] is True
    assert CANARIES[0] not in json.dumps(found)


def test_the_inputs_of_a_run_are_omitted_and_marked_as_omitted(acme: Wire) -> None:
    run_id = acme.run("conformance-identity", {"payload": {"a": 1}})["runId"]

    found = bundle(acme, run_id)

    assert "inputs" not in found["run"]
    assert found["redactionApplied"] is True


@pytest.mark.parametrize("canary", CANARIES)
def test_no_secret_is_in_a_bundle(acme: Wire, canary: str) -> None:
    run_id = acme.run("conformance-identity", {"payload": {"text": f"it is {canary}"}})["runId"]

    response = acme.get(f"/v1/runs/{run_id}/debug-bundle")

    assert canary not in response.text
    assert response.json()["redactionApplied"] is True


def test_a_sensitive_variable_stays_masked(acme: Wire) -> None:
    definition = workflow(
        [node("a", "core.setVariable", config={"name": "pin", "value": "4711-0815"})],
        variables=[variable("pin", sensitive=True)],
    )
    run_id = acme.run(acme.register(definition))["runId"]

    found = bundle(acme, run_id)

    assert "4711-0815" not in json.dumps(found["run"]["variables"])
    assert found["redactionApplied"] is True


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_bundle_is_limited_to_the_requested_number_of_events_and_says_so(
    acme: Wire, most: int
) -> None:
    run_id = acme.run("conformance-multi-node")["runId"]
    log = acme.log(run_id)

    found = bundle(acme, run_id, maxEvents=most)

    assert found["events"] == log[:most]
    assert found["truncated"] is True
    assert found["truncatedReason"] == "events_truncated_to_max_events"
    assert found["metrics"]["eventCount"] == len(log)


def test_a_limit_above_the_log_s_length_cuts_nothing(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    assert bundle(acme, run_id, maxEvents=4)["truncated"] is False


@pytest.mark.parametrize("most", ["-1", "x", "1.5", ""])
def test_a_limit_is_an_integer(acme: Wire, most: str) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    response = acme.get(f"/v1/runs/{run_id}/debug-bundle", params={"maxEvents": most})

    assert (response.status_code, response.json()["details"]["field"]) == (400, "maxEvents")


def large(count: int, size: int, names: int) -> JsonObject:
    """Return a workflow that writes so many values of that size under so many names."""
    value = "x" * size
    nodes = [
        node(f"n{n}", "core.setVariable", config={"name": f"v{n % names}", "value": value})
        for n in range(count)
    ]
    return workflow(nodes)


@pytest.mark.parametrize(
    ("definition", "reasons"),
    [
        (large(25, 90_000, 1), {"events_truncated_to_size_cap"}),
        (
            large(80, 60_000, 80),
            {"events_truncated_to_size_cap", "run_values_omitted_to_size_cap"},
        ),
    ],
    ids=["events", "values"],
)
def test_a_bundle_is_never_larger_than_eight_megabytes(
    new_host: Callable[..., ServedHost], connect: Connect, definition: JsonObject, reasons: set[str]
) -> None:
    acme = connect(
        ACME, new_host(WOPR_MAX_BODY_BYTES="20000000", WOPR_MAX_WORKFLOW_BYTES="20000000")
    )
    run_id = acme.run(acme.register(definition))["runId"]

    response = acme.get(f"/v1/runs/{run_id}/debug-bundle")

    found = response.json()
    assert len(response.content) <= LARGEST_BYTES
    assert found["truncated"] is True
    assert set(found["truncatedReason"].split(",")) == reasons
    assert len(found["events"]) < found["metrics"]["eventCount"]
    sequences = [event["sequence"] for event in found["events"]]
    assert sequences == list(range(len(sequences)))


def test_a_waiting_run_is_exported_with_its_real_status_and_without_a_token(
    acme: Wire,
) -> None:
    run_id = acme.create("conformance-approval")
    acme.events_until(run_id, "approval.requested")

    found = bundle(acme, run_id)

    assert found["run"]["status"] == "waiting-approval"
    assert "interruptToken" not in json.dumps(found)


def test_another_tenant_s_run_cannot_be_exported(acme: Wire, globex: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    foreign = globex.get(f"/v1/runs/{run_id}/debug-bundle")
    missing = globex.get(f"/v1/runs/{run_id[::-1]}/debug-bundle")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.text.replace(run_id, "") == missing.text.replace(run_id[::-1], "")


def test_exporting_needs_the_scope_to_read_runs(connect: Connect, acme: Wire) -> None:
    path = f"/v1/runs/{acme.run('conformance-noop')['runId']}/debug-bundle"

    assert connect(VIEWER).get(path).status_code == 200
    assert connect(INGEST).get(path).status_code == 403
    assert connect(None).get(path).status_code == 401
