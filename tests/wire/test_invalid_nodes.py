"""Nodes that could never work are refused when their workflow is registered."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from wopr.protocol.documents import Json, JsonObject


def _faults(wire: Wire, definition: JsonObject) -> dict[str, str]:
    answer = wire.post("/v1/workflows:validate", definition).json()
    return {fault["path"]: fault["message"] for fault in answer["errors"]}


def _given(value: Json) -> JsonObject:
    return {"type": "static", "value": value}


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        (
            {"prompt": "Decide.", "model": "zzz:m"},
            "model",
            "'zzz:m': there is no model provider 'zzz': expected one of anthropic, google, openai",
        ),
        (
            {"prompt": "Decide.", "model": "openai:m", "fallbackModel": "opnai:m"},
            "fallbackModel",
            "'opnai:m': there is no model provider 'opnai': did you mean 'openai'?",
        ),
        (
            {"prompt": "", "model": "openai:m"},
            "prompt",
            "is '': the prompt must describe the decision",
        ),
    ],
)
def test_a_supervisor_that_cannot_decide_is_refused(
    acme: Wire, config: JsonObject, path: str, message: str
) -> None:
    supervisor = node("sup", "core.orchestrator.supervisor", config=config)

    assert _faults(acme, workflow([supervisor])) == {f"nodes.0.config.{path}": message}


def test_an_agent_with_a_missing_provider_is_refused(acme: Wire) -> None:
    agent = node("ask", "openwop.llm.agent", config={"prompt": "Go.", "model": "nope:m"})

    assert list(_faults(acme, workflow([agent]))) == ["nodes.0.config.model"]


@pytest.mark.parametrize(
    ("type_id", "config", "needed"),
    [
        ("core.loop", {}, "config.items, config.times, config.while or the input 'items'"),
        ("core.setVariable", {"name": "v"}, "config.value, config.expression or the input 'value'"),
        ("core.channelWrite", {"channelName": "c"}, "config.value or the input 'value'"),
        ("wopr.http.request", {}, "config.url or the input 'url'"),
    ],
)
def test_a_node_without_a_required_value_is_refused(
    acme: Wire, type_id: str, config: JsonObject, needed: str
) -> None:
    [(path, message)] = _faults(acme, workflow([node("a", type_id, config=config)])).items()

    assert path == "nodes.0.config"
    assert message == f"{type_id} needs {needed}, and has none of them"


def test_a_loop_over_an_input_is_accepted(acme: Wire) -> None:
    assert _faults(acme, workflow([node("a", "core.loop", inputs={"items": _given([1])})])) == {}


@pytest.mark.parametrize(
    ("type_id", "config", "name", "hint"),
    [
        ("core.delay", {}, "dlayMs", "did you mean 'delayMs'?"),
        ("wopr.http.request", {"url": "https://example.com"}, "urll", "did you mean 'url'?"),
        ("core.setVariable", {"name": "v", "value": 1}, "vlue", "did you mean 'value'?"),
        ("core.channelWrite", {"channelName": "c", "value": 1}, "vlue", "did you mean 'value'?"),
        ("core.approvalGate", {"title": "Pay?"}, "artefact", "did you mean 'artifact'?"),
        ("core.conversationGate", {}, "promt", "did you mean 'prompt'?"),
    ],
)
def test_an_input_that_a_node_does_not_read_is_refused(
    acme: Wire, type_id: str, config: JsonObject, name: str, hint: str
) -> None:
    asked = node("a", type_id, config=config, inputs={name: _given(5)})

    faults = _faults(acme, workflow([asked]))

    assert faults == {f"nodes.0.inputs.{name}": f"unknown input {name!r}: {hint}"}


@pytest.mark.parametrize(
    ("type_id", "config"),
    [
        ("core.identity", {}),
        ("core.noop", {}),
        ("core.conditional", {"expression": "input.anything > 1"}),
        ("core.loop", {"while": "iteration < input.anything"}),
        ("core.setVariable", {"name": "v", "expression": "input.anything"}),
    ],
)
def test_a_node_that_accepts_any_input_accepts_it(
    acme: Wire, type_id: str, config: JsonObject
) -> None:
    asked = node("a", type_id, config=config, inputs={"anything": _given(5)})

    assert _faults(acme, workflow([asked])) == {}


def test_an_unknown_input_of_a_child_workflow_is_reported(acme: Wire) -> None:
    child = acme.register(workflow([node("a")], variables=[variable("reason")]))
    config = {"workflowId": child, "inputMapping": {"reasn": "x"}}
    inputs = {"reason": _given("late"), "foo": _given(1)}
    parent = workflow([node("call", "core.subWorkflow", config=config, inputs=inputs)])

    answer = acme.post("/v1/workflows:validate", parent).json()

    assert answer["valid"] is True
    assert answer["warnings"] == [
        {
            "path": "nodes.0.inputs.foo",
            "message": f"workflow {child!r} has no input 'foo', so it has no effect: "
            "expected one of reason",
        },
        {
            "path": "nodes.0.config.inputMapping.reasn",
            "message": f"workflow {child!r} has no input 'reasn', so it has no effect: "
            "did you mean 'reason'?",
        },
    ]
