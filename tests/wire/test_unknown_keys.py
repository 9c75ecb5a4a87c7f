"""An unknown key is refused with its place and a suggestion."""

from __future__ import annotations

import json

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, from_variable, node, variable, workflow
from tests.support.recorder import OFFICIAL
from tests.wire.refused_runs import refused
from wopr.nodes.builtin import builtin_registry
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Refused
from wopr.runs.definitions.checks import check_definition

TYPES = sorted(each.type_id for each in builtin_registry())


def _errors(wire: Wire, definition: JsonObject) -> dict[str, str]:
    response = wire.post("/v1/workflows", definition)
    assert response.status_code == 400, response.text
    return {fault["path"]: fault["message"] for fault in response.json()["details"]["errors"]}


@pytest.mark.parametrize(
    ("type_id", "config", "path", "message"),
    [
        ("core.delay", {"delayMS": 5}, "delayMS", "unknown key 'delayMS': did you mean 'delayMs'?"),
        (
            "core.delay",
            {"seconds": 5},
            "seconds",
            "unknown key 'seconds': expected one of delayMs, durationMs, ms",
        ),
        ("core.fail", {"mesage": "x"}, "mesage", "unknown key 'mesage': did you mean 'message'?"),
        (
            "core.approvalGate",
            {"title": "Pay?", "timeout_ms": 5},
            "timeout_ms",
            "unknown key 'timeout_ms': did you mean 'timeoutMs'?",
        ),
        ("core.end", {"output": 1}, "output", "unknown key 'output': no keys are allowed here"),
        (
            "core.clarificationGate",
            {"questions": [{"id": "q", "question": "?", "shcema": {}}]},
            "questions.0.shcema",
            "unknown key 'shcema': did you mean 'schema'?",
        ),
    ],
)
def test_an_unknown_config_key_is_refused_with_a_suggestion(
    acme: Wire, type_id: str, config: JsonObject, path: str, message: str
) -> None:
    errors = _errors(acme, workflow([node("a", type_id, config=config)]))

    assert errors == {f"nodes.0.config.{path}": message}


@pytest.mark.parametrize("type_id", TYPES)
def test_no_built_in_type_accepts_an_unknown_config_key(type_id: str) -> None:
    definition = workflow([node("a", type_id, config={"zzUnknown": 1})])

    with pytest.raises(Refused) as refusal:
        check_definition(definition, builtin_registry())

    errors: Json = refusal.value.details["errors"]
    assert "nodes.0.config.zzUnknown" in [fault["path"] for fault in errors]


def test_an_unknown_run_input_is_refused_with_a_suggestion(acme: Wire) -> None:
    definition = workflow([node("a")], variables=[variable("reason"), variable("amount", "number")])
    body = {"workflowId": acme.register(definition), "inputs": {"reasn": "late", "amount": 1}}

    details = refused(acme, body)

    message = f"is not an input of {definition['id']}: did you mean 'reason'?"
    assert details["errors"] == [{"path": "inputs.reasn", "message": message}]


def test_an_input_read_by_a_port_an_expression_or_a_config_needs_no_declaration(
    acme: Wire,
) -> None:
    computed = {"type": "expression", "expression": 'inputs.b + variables["c"]'}
    definition = workflow(
        [
            node("ports", "core.identity", inputs={"a": from_variable("a.x"), "sum": computed}),
            node("config", "core.getVariable", config={"name": "d"}),
            node("last"),
        ],
        edges=[
            edge("ports", "config"),
            edge("config", "last", condition={"expression": "inputs.e"}),
        ],
        variables=[variable("declared")],
    )
    inputs = {"a": {"x": 1}, "b": 1, "c": 2, "d": 3, "e": True}

    run_id = acme.create(acme.register(definition), inputs=inputs)

    assert acme.finished(run_id)["status"] == "completed"


def test_a_workflow_without_declared_variables_accepts_any_inputs(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([node("a")])), inputs={"anything": 1})

    assert acme.finished(run_id)["variables"] == {"anything": 1}


def test_a_branch_refuses_an_unknown_input_too(acme: Wire) -> None:
    workflow_id = acme.register(workflow([node("a")], variables=[variable("reason")]))
    run_id = acme.create(workflow_id, inputs={"reason": "late"})
    acme.finished(run_id)

    overlay = {"inputs": {"raeson": "early"}}
    body = {"mode": "branch", "fromSeq": 0, "runOptionsOverlay": overlay}
    response = acme.post(f"/v1/runs/{run_id}:fork", body)

    assert response.status_code == 400
    assert "did you mean 'reason'?" in response.json()["message"]


def test_an_unknown_key_of_a_trigger_is_refused_with_a_suggestion(acme: Wire) -> None:
    trigger = {"id": "m", "type": "manual", "enabeld": True, "config": {"cron": "* * * * *"}}

    errors = _errors(acme, workflow([node("a")], triggers=[trigger]))

    assert errors == {
        "triggers.0.enabeld": "unknown key 'enabeld': did you mean 'enabled'?",
        "triggers.0.config.cron": "unknown key 'cron': no keys are allowed here",
    }


@pytest.mark.parametrize("kind", ["schedule", "webhook", "event", "channel-write"])
def test_a_trigger_that_would_never_start_a_run_is_refused(acme: Wire, kind: str) -> None:
    trigger = {"id": "t", "type": kind, "config": {"cron": "0 * * * *"}}

    errors = _errors(acme, workflow([node("a")], triggers=[trigger]))

    assert list(errors) == ["triggers.0.type"]
    assert f"does not start runs by {kind!r} triggers" in errors["triggers.0.type"]


def test_a_disabled_trigger_is_kept(acme: Wire) -> None:
    trigger = {"id": "t", "type": "schedule", "enabled": False, "config": {"cron": "0 * * * *"}}

    assert acme.register(workflow([node("a")], triggers=[trigger]))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("maxRetry", "'maxRetries'"),
        ("retries", "'maxRetries'"),
        ("max_retries", "'maxRetries'"),
        ("timeoutMs", "'timeout' (milliseconds)"),
        ("timout", "'timeout' (milliseconds)"),
        ("retryPolicy", "'backoff'"),
    ],
)
def test_a_setting_with_a_name_close_to_a_known_one_is_refused(
    acme: Wire, name: str, right: str
) -> None:
    errors = _errors(acme, workflow([node("a", settings={name: 3})]))

    assert errors == {f"nodes.0.settings.{name}": f"unknown key {name!r}: did you mean {right}?"}


def test_a_workflow_setting_with_a_name_close_to_a_known_one_is_refused(acme: Wire) -> None:
    errors = _errors(acme, workflow([node("a")], settings={"maxIterations": 10}))

    message = "unknown key 'maxIterations': did you mean 'maxLoopbackIterations'?"
    assert errors == {"settings.maxIterations": message}


def test_other_unknown_settings_are_kept_and_reported_as_warnings(acme: Wire) -> None:
    definition = workflow([node("a", settings={"color": "red"})], settings={"x-editor": 1})
    warnings = [
        {
            "path": path,
            "message": f"unknown key {name!r} is kept and has no effect on this host",
        }
        for path, name in (("settings.x-editor", "x-editor"), ("nodes.0.settings.color", "color"))
    ]

    checked = acme.post("/v1/workflows:validate", definition)
    first = acme.post("/v1/workflows", definition)
    again = acme.post("/v1/workflows", definition)

    assert checked.json() == {"valid": True, "errors": [], "warnings": warnings}
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json() == definition | {"warnings": warnings}
    assert acme.document(f"/v1/workflows/{definition['id']}") == definition


def test_faults_of_the_schema_do_not_hide_faults_of_the_graph(acme: Wire) -> None:
    definition = workflow(
        [
            node("a", "core.nop"),
            node("b", setings={}, config={"zz": 1}),
            node("c", position={"x": "left", "y": 0}),
            node("c"),
            node("d", "core.conditional", config={"expression": "1 +"}),
        ],
        edges=[edge("a", "bb"), edge("b", "c")],
        settings={"timeout": -1, "maxRetry": 1},
        triggers=[{"id": "t", "type": "schedule"}],
    )

    errors = _errors(acme, definition)

    assert set(errors) == {
        "nodes.1.setings",
        "nodes.2.position.x",
        "settings.timeout",
        "settings.maxRetry",
        "nodes.0.typeId",
        "nodes.1.config.zz",
        "nodes.3",
        "nodes.4.config.expression",
        "edges.0.targetNodeId",
        "triggers.0.type",
    }
    assert errors["nodes.0.typeId"].endswith("did you mean 'core.noop'?")
    assert errors["edges.0.targetNodeId"].startswith("there is no node 'bb': did you mean 'b'?")


def test_a_cycle_is_reported_beside_a_fault_of_the_schema(acme: Wire) -> None:
    nodes = [node("a"), node("b"), node("c", naem="C")]

    errors = _errors(acme, workflow(nodes, edges=[edge("a", "b"), edge("b", "a")]))

    assert set(errors) == {"nodes.2.naem", "edges"}


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the published workflows are not here")
def test_every_key_of_the_published_workflows_is_known() -> None:
    registry = builtin_registry(with_conformance=True)
    found: list[str] = []
    for path in sorted((OFFICIAL / "fixtures").glob("*.json")):
        try:
            check_definition(json.loads(path.read_bytes()), registry)
        except Refused as refusal:
            errors: Json = refusal.details.get("errors", [])
            found += [
                f"{path.stem}: {fault['path']}"
                for fault in errors
                if "unknown key" in fault["message"]
            ]

    assert not found
