from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, node, variable, workflow
from tests.wire.refused_runs import refused
from wopr.protocol.documents import Json, JsonObject

KINDS: list[tuple[str, Json, list[Json]]] = [
    ("string", "x", [1, True, None, [], {}]),
    ("number", 1.5, ["1", True, None, [], {}]),
    ("boolean", True, ["true", 1, None, [], {}]),
    ("object", {"a": 1}, ["{}", 1, False, None, []]),
    ("array", [1], ["[]", 1, False, None, {}]),
]
NOT_WHOLE: list[Json] = [0, -1, 1.5, "3", None, True, [], {}]


# Inputs


def test_every_missing_or_mistyped_input_is_named(acme: Wire) -> None:
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

    details = refused(acme, body)

    assert [fault["path"] for fault in details["errors"]] == [
        "inputs.missing",
        "inputs.wrong",
        "inputs.also-wrong",
    ]
    assert details["field"] == "inputs.missing"


def test_the_message_names_every_invalid_input_too(acme: Wire) -> None:
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
        details = refused(acme, {"workflowId": workflow_id, "inputs": {"v": value}})
        assert details["field"] == "inputs.v"


def test_a_default_replaces_a_missing_required_input(acme: Wire) -> None:
    definition = workflow(
        [node("a")], variables=[variable("v", required=True, defaultValue="stand-in")]
    )
    workflow_id = acme.register(definition)

    assert acme.run(workflow_id)["variables"] == {"v": "stand-in"}
    assert acme.run(workflow_id, {"v": "own"})["variables"] == {"v": "own"}


def test_inputs_without_a_declared_variable_are_kept(acme: Wire) -> None:
    found = acme.run("conformance-noop", {"undeclared": [1]})

    assert found["variables"] == {"undeclared": [1]}


# Options


@pytest.mark.parametrize(
    "name", ["recursionLimit", "runTimeoutMs", "maxLoopIterations", "maxTokens"]
)
@pytest.mark.parametrize("value", NOT_WHOLE)
def test_a_limit_that_is_not_a_positive_integer_is_refused(
    acme: Wire, name: str, value: Json
) -> None:
    body = {"workflowId": "conformance-noop", "configurable": {name: value}}

    assert refused(acme, body)["field"] == f"configurable.{name}"


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

    assert refused(acme, body)["field"].startswith(f"configurable.{name}")


def test_a_recursion_limit_above_the_host_s_is_reduced(acme: Wire) -> None:
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


def test_a_run_timeout_stops_an_endless_run(acme: Wire) -> None:
    workflow_id = acme.register(workflow([delay("wait", 30_000)]))

    found = acme.run(workflow_id, configurable={"runTimeoutMs": 100})

    assert found["error"]["code"] == "run_timeout"


def test_options_unknown_to_the_protocol_are_passed_through(acme: Wire) -> None:
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
def test_options_are_checked_against_the_workflow_s_schema(
    acme: Wire, options: JsonObject, path: str
) -> None:
    body = {"workflowId": "conformance-configurable-schema", "configurable": options}

    assert refused(acme, body)["field"] == path


@pytest.mark.parametrize("options", [{}, {"recursionLimit": 1}, {"tags": ["red"]}])
def test_options_that_fit_the_workflow_s_schema_are_accepted(
    acme: Wire, options: JsonObject
) -> None:
    found = acme.run("conformance-configurable-schema", configurable=options)

    assert found["status"] == "completed"
