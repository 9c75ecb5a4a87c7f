from __future__ import annotations

import pytest

from tests.wire.client import Wire
from tests.wire.definitions import delay, edge, fresh, node, variable, workflow
from wopr.protocol.documents import Json, JsonObject

KINDS: list[tuple[str, Json, list[Json]]] = [
    ("string", "x", [1, True, None, [], {}]),
    ("number", 1.5, ["1", True, None, [], {}]),
    ("boolean", True, ["true", 1, None, [], {}]),
    ("object", {"a": 1}, ["{}", 1, False, None, []]),
    ("array", [1], ["[]", 1, False, None, {}]),
]
NOT_WHOLE: list[Json] = [0, -1, 1.5, "3", None, True, [], {}]


def _refused(wire: Wire, body: JsonObject, **options: Json) -> JsonObject:
    """The details of a create that is refused as invalid."""
    response = wire.post("/v1/runs", body, **options)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    details: JsonObject = response.json()["details"]
    return details


# Inputs


def test_every_input_that_is_missing_or_of_the_wrong_type_is_named(acme: Wire) -> None:
    definition = workflow(
        [node("a")],
        variables=[
            variable("present", required=True),
            variable("missing", required=True),
            variable("wrong", "number"),
            variable("also-wrong", "array", required=True),
            variable("optional", "object"),
        ],
    )
    body = {
        "workflowId": acme.register(definition),
        "inputs": {"present": "x", "wrong": "1", "also-wrong": {}},
    }

    details = _refused(acme, body)

    assert [fault["path"] for fault in details["errors"]] == [
        "inputs.missing",
        "inputs.wrong",
        "inputs.also-wrong",
    ]
    assert details["field"] == "inputs.missing"


def test_the_message_names_every_wrong_input_too(acme: Wire) -> None:
    definition = workflow(
        [node("a")], variables=[variable("one", required=True), variable("two", required=True)]
    )

    response = acme.post("/v1/runs", {"workflowId": acme.register(definition)})

    assert "inputs.one" in response.json()["message"]
    assert "inputs.two" in response.json()["message"]


@pytest.mark.parametrize(("kind", "right", "wrong"), KINDS)
def test_an_input_must_have_the_type_of_its_variable(
    acme: Wire, kind: str, right: Json, wrong: list[Json]
) -> None:
    workflow_id = acme.register(workflow([node("a")], variables=[variable("v", kind)]))

    assert acme.run(workflow_id, {"v": right})["variables"]["v"] == right
    for value in wrong:
        details = _refused(acme, {"workflowId": workflow_id, "inputs": {"v": value}})
        assert details["field"] == "inputs.v"


def test_a_default_stands_in_for_a_required_input(acme: Wire) -> None:
    definition = workflow(
        [node("a")], variables=[variable("v", required=True, defaultValue="stand-in")]
    )
    workflow_id = acme.register(definition)

    assert acme.run(workflow_id)["variables"] == {"v": "stand-in"}
    assert acme.run(workflow_id, {"v": "own"})["variables"] == {"v": "own"}


def test_inputs_that_no_variable_declares_are_kept(acme: Wire) -> None:
    found = acme.run("conformance-noop", {"undeclared": [1]})

    assert found["variables"] == {"undeclared": [1]}


# Options


@pytest.mark.parametrize(
    "name", ["recursionLimit", "runTimeoutMs", "maxLoopIterations", "maxTokens"]
)
@pytest.mark.parametrize("value", NOT_WHOLE)
def test_a_limit_that_is_no_whole_number_of_at_least_one_is_refused(
    acme: Wire, name: str, value: Json
) -> None:
    body = {"workflowId": "conformance-noop", "configurable": {name: value}}

    assert _refused(acme, body)["field"] == f"configurable.{name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("escalationThreshold", 1.1),
        ("model", ""),
        ("mockProvider", "stream-text"),
        ("mockProvider", {"id": "stream-text", "other": 1}),
        ("mockProvider", {}),
    ],
)
def test_a_reserved_option_of_the_wrong_kind_is_refused_by_name(
    acme: Wire, name: str, value: Json
) -> None:
    body = {"workflowId": "conformance-noop", "configurable": {name: value}}

    assert _refused(acme, body)["field"].startswith(f"configurable.{name}")


def test_a_recursion_limit_above_the_host_s_own_is_clamped(acme: Wire) -> None:
    most = acme.document("/.well-known/openwop")["limits"]["maxNodeExecutions"]
    loop = workflow(
        [node("loop", "core.loop", config={"times": most}), node("body")],
        edges=[
            edge(
                "loop", "body", condition={"type": "expression", "expression": "!nodes.loop.done"}
            ),
            edge("body", "loop"),
        ],
        settings={"maxLoopbackIterations": 10 * most},
    )
    options = {"recursionLimit": 10 * most, "maxLoopIterations": 10 * most}

    run_id = acme.create(acme.register(loop), configurable=options)
    found = acme.finished(run_id)

    breach = [event["payload"] for event in acme.log(run_id) if event["type"] == "cap.breached"]
    assert found["status"] == "failed"
    assert len(breach) == 1
    assert breach[0]["limit"] <= most


def test_a_run_timeout_stops_a_run_that_would_go_on(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 30_000)]))

    found = acme.run(workflow_id, configurable={"runTimeoutMs": 100})

    assert found["error"]["code"] == "run_timeout"


def test_options_that_the_protocol_does_not_know_pass_through(acme: Wire) -> None:
    options = {"acme.colour": {"deep": [1]}, "anything": None}

    assert acme.run("conformance-noop", configurable=options)["configurable"] == options


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"unknown": 1}, "configurable"),
        ({"tags": "red"}, "configurable.tags"),
        ({"tags": ["red", 7]}, "configurable.tags.1"),
        ({"recursionLimit": 0}, "configurable.recursionLimit"),
    ],
)
def test_options_are_held_against_the_workflow_s_own_schema(
    acme: Wire, options: JsonObject, path: str
) -> None:
    body = {"workflowId": "conformance-configurable-schema", "configurable": options}

    assert _refused(acme, body)["field"] == path


@pytest.mark.parametrize("options", [{}, {"recursionLimit": 1}, {"tags": ["red"]}])
def test_options_that_fit_the_workflow_s_schema_are_taken(acme: Wire, options: JsonObject) -> None:
    found = acme.run("conformance-configurable-schema", configurable=options)

    assert found["status"] == "completed"


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
    assert _refused(acme, {"workflowId": "conformance-noop", "tags": tags})["field"] == field


def test_tags_at_their_bounds_are_taken(acme: Wire) -> None:
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

    assert _refused(acme, body)["field"] == "metadata"


def test_metadata_at_its_bounds_is_taken(acme: Wire) -> None:
    metadata = {"a": {"b": {"c": {"d": 1}}}, "x-host-other-thing": "x" * 8000}

    assert acme.run("conformance-noop", metadata=metadata)["metadata"] == metadata


@pytest.mark.parametrize("key", ["tenant", "workflow_id", "Inputs", "", "__proto__"])
def test_a_member_that_does_not_exist_is_refused_by_name(acme: Wire, key: str) -> None:
    assert _refused(acme, {"workflowId": "conformance-noop", key: 1})["field"] == key


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
    assert _refused(acme, body)["field"] == field


@pytest.mark.parametrize(
    ("member", "capability"),
    [("callbackUrl", "runs.callbackUrl"), ("residency", "residency.supported")],
)
def test_what_is_not_advertised_is_refused_with_its_capability(
    acme: Wire, member: str, capability: str
) -> None:
    body = {"workflowId": "conformance-noop", member: "https://example.org/"}

    response = acme.post("/v1/runs", body)

    assert response.status_code == 400
    assert response.json()["error"] == "capability_required"
    assert response.json()["details"]["requiredCapability"] == capability


def test_the_own_tenant_may_be_named_and_another_may_not(acme: Wire) -> None:
    body = {"workflowId": "conformance-noop", "tenantId": "acme"}

    own = acme.post("/v1/runs", body)
    other = acme.post("/v1/runs", body | {"tenantId": "globex"})
    nobody = acme.post("/v1/runs", body | {"tenantId": "nobody-has-this"})

    assert own.status_code == 201
    assert (other.status_code, nobody.status_code) == (403, 403)
    assert other.json() == nobody.json()
    assert other.json()["error"] in ("forbidden", "workspace_membership_required")


# What test keys may do


def test_a_mock_provider_that_does_not_exist_is_refused_with_those_that_do(acme: Wire) -> None:
    mock = {"mockProvider": {"id": "oracle"}}

    response = acme.post(
        "/v1/runs", {"workflowId": "conformance-stream-text", "configurable": mock}
    )

    advertised = acme.document("/.well-known/openwop")["testing"]["mockProviders"]
    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_mock_provider"
    assert response.json()["details"]["supported"] == advertised


@pytest.mark.parametrize("config", [{"tokens": "x"}, {"delayMsPerToken": 5001}, {"tokens": []}])
def test_the_config_of_a_mock_provider_is_checked(acme: Wire, config: JsonObject) -> None:
    mock = {"mockProvider": {"id": "stream-text", "config": config}}

    details = _refused(acme, {"workflowId": "conformance-stream-text", "configurable": mock})

    assert details["field"].startswith("configurable.mockProvider.config")


@pytest.mark.parametrize("provider", ["stream-text", "oracle"])
def test_a_production_key_gets_no_mock_provider(live: Wire, provider: str) -> None:
    mock = {"mockProvider": {"id": provider}}

    response = live.post(
        "/v1/runs", {"workflowId": "conformance-stream-text", "configurable": mock}
    )

    assert response.status_code == 403
    assert response.json()["error"] == "mock_provider_forbidden"


@pytest.mark.parametrize("version", ["0", "999", "-1", "1.0", "", "latest", "\u0661", "9" * 5000])
def test_a_forced_version_out_of_range_is_refused_with_the_range(acme: Wire, version: str) -> None:
    headers = {"X-Force-Engine-Version": version.encode()}

    response = acme.post("/v1/runs", {"workflowId": "conformance-version-fold"}, headers=headers)

    advertised = acme.document("/.well-known/openwop")["testing"]["forceEngineVersionRange"]
    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_force_engine_version"
    assert response.json()["details"] == advertised


@pytest.mark.parametrize("version", ["1", "999"])
def test_a_production_key_cannot_force_a_version(live: Wire, version: str) -> None:
    headers = {"X-Force-Engine-Version": version}

    response = live.post("/v1/runs", {"workflowId": "conformance-version-fold"}, headers=headers)

    assert response.status_code == 403
    assert response.json()["error"] == "force_engine_version_forbidden"


def test_without_a_mock_a_model_call_says_that_there_is_no_provider(live: Wire) -> None:
    found = live.run("conformance-stream-text")

    assert found["error"]["code"] == "credential_required"


@pytest.mark.parametrize(
    ("provider", "status"),
    [
        ({"id": "tool-calls", "config": {"toolCalls": [{"id": "c1", "name": "t"}]}}, "completed"),
        ({"id": "usage-only", "config": {"usage": {"promptTokens": 3}}}, "completed"),
        ({"id": "error", "config": {"code": "provider_down", "message": "down"}}, "failed"),
        ({"id": "stream-text"}, "completed"),
    ],
)
def test_every_mock_provider_does_what_its_config_says(
    acme: Wire, provider: JsonObject, status: str
) -> None:
    found = acme.run("conformance-stream-text", configurable={"mockProvider": provider})

    assert found["status"] == status
    assert found.get("error", {}).get("code") in (None, "provider_down")


# Deduplication


def test_a_second_active_run_of_a_workflow_is_refused_when_asked_to(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 20_000)]))
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


def test_without_the_header_runs_of_a_workflow_live_side_by_side(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 20_000)], id=fresh()))
    first = acme.create(workflow_id, headers={"X-Dedup": "enforce"})

    second = acme.create(workflow_id)

    assert first != second
    acme.post("/v1/runs:bulk-cancel", {"runIds": [first, second]})


def test_deduplication_does_not_look_across_tenants(acme: Wire, globex: Wire) -> None:
    definition = workflow([delay("wait", 20_000)])
    acme.register(definition)
    globex.register(definition)
    first = acme.create(definition["id"], headers={"X-Dedup": "enforce"})

    second = globex.create(definition["id"], headers={"X-Dedup": "enforce"})

    acme.post(f"/v1/runs/{first}/cancel")
    globex.post(f"/v1/runs/{second}/cancel")
