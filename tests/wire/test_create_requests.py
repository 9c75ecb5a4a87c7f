from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, fresh, workflow
from tests.wire.refused_runs import refused
from wopr.protocol.documents import Json, JsonObject

# Tags, metadata and the other members


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        (["x"] * 101, "tags"),
        ([""], "tags[0]"),
        (["fine", "x" * 257], "tags[1]"),
        ([1], "tags[0]"),
        ("red", "tags"),
    ],
)
def test_tags_out_of_bounds_are_refused(acme: Wire, tags: Json, field: str) -> None:
    assert refused(acme, {"workflowId": "conformance-noop", "tags": tags})["field"] == field


def test_tags_at_their_bounds_are_accepted(acme: Wire) -> None:
    tags = ["x" * 256, *(f"t{number}" for number in range(99))]

    assert acme.run("conformance-noop", tags=tags)["tags"] == tags


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": {"b": {"c": {"d": 1}}}} | {"x": {"b": {"c": {"d": {"e": 1}}}}},
        {"a": [[[[]]]]},
        {"a": "x" * 8192},
        {"a": "ü" * 4096},
        [],
        "text",
    ],
)
def test_metadata_too_deep_or_too_large_is_refused(acme: Wire, metadata: Json) -> None:
    body = {"workflowId": "conformance-noop", "metadata": metadata}

    assert refused(acme, body)["field"] == "metadata"


def test_metadata_at_its_bounds_is_accepted(acme: Wire) -> None:
    metadata = {"a": {"b": {"c": {"d": 1}}}, "x-host-other-thing": "x" * 8000}

    assert acme.run("conformance-noop", metadata=metadata)["metadata"] == metadata


@pytest.mark.parametrize("key", ["tenant", "workflow_id", "Inputs", "", "__proto__"])
def test_an_unknown_member_is_refused_by_name(acme: Wire, key: str) -> None:
    assert refused(acme, {"workflowId": "conformance-noop", key: 1})["field"] == key


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "workflowId"),
        ({"workflowId": ""}, "workflowId"),
        ({"workflowId": "x" * 129}, "workflowId"),
        ({"workflowId": 7}, "workflowId"),
        ({"workflowId": "hello", "inputs": []}, "inputs"),
        ({"workflowId": "hello", "inputs": None}, "inputs"),
        ({"workflowId": "hello", "configurable": "x"}, "configurable"),
        ({"workflowId": "hello", "scopeId": ""}, "scopeId"),
    ],
)
def test_a_member_of_the_wrong_kind_is_refused_by_name(
    acme: Wire, body: JsonObject, field: str
) -> None:
    assert refused(acme, body)["field"] == field


@pytest.mark.parametrize(
    ("member", "capability"),
    [("callbackUrl", "runs.callbackUrl"), ("residency", "residency.supported")],
)
def test_an_unadvertised_member_is_refused_with_its_capability(
    acme: Wire, member: str, capability: str
) -> None:
    body = {"workflowId": "conformance-noop", member: "https://example.org/"}

    response = acme.post("/v1/runs", body)

    assert response.status_code == 400
    assert response.json()["error"] == "capability_required"
    assert response.json()["details"]["requiredCapability"] == capability


def test_the_caller_s_tenant_can_be_named_and_another_cannot(acme: Wire) -> None:
    body = {"workflowId": "conformance-noop", "tenantId": "acme"}

    own = acme.post("/v1/runs", body)
    other = acme.post("/v1/runs", body | {"tenantId": "globex"})
    unknown = acme.post("/v1/runs", body | {"tenantId": "nobody-has-this"})

    assert own.status_code == 201
    assert (other.status_code, unknown.status_code) == (403, 403)
    assert other.json() == unknown.json()
    assert other.json()["error"] in ("forbidden", "workspace_membership_required")


# Deduplication


def test_a_second_active_run_of_a_workflow_is_refused_on_request(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 120_000)]))
    enforce = {"X-Dedup": "enforce"}
    first = acme.create(workflow_id, headers=enforce)

    second = acme.post("/v1/runs", {"workflowId": workflow_id}, headers=enforce)

    details = second.json()["details"]
    assert second.status_code == 409
    assert second.json()["error"] == "run_already_active"
    assert (details["activeRunId"], details["activeHost"]) == (first, "cloud")
    assert second.headers["retry-after"] == str(details["retryAfter"])
    acme.post(f"/v1/runs/{first}/cancel")
    acme.finished(first)
    again = acme.create(workflow_id, headers=enforce)
    acme.post(f"/v1/runs/{again}/cancel")


def test_without_the_header_runs_of_a_workflow_are_concurrent(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 120_000)], id=fresh()))
    first = acme.create(workflow_id, headers={"X-Dedup": "enforce"})

    second = acme.create(workflow_id)

    assert first != second
    acme.post("/v1/runs:bulk-cancel", {"runIds": [first, second]})


def test_deduplication_is_limited_to_the_tenant(acme: Wire, globex: Wire) -> None:
    definition = workflow([delay("wait", 120_000)])
    acme.register(definition)
    globex.register(definition)
    first = acme.create(definition["id"], headers={"X-Dedup": "enforce"})

    second = globex.create(definition["id"], headers={"X-Dedup": "enforce"})

    acme.post(f"/v1/runs/{first}/cancel")
    globex.post(f"/v1/runs/{second}/cancel")
