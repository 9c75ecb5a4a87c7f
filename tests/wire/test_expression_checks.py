"""An expression that must fail is refused with its workflow; other failures name their node."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from wopr.protocol.documents import JsonObject


def _faults(wire: Wire, definition: JsonObject) -> dict[str, str]:
    answer = wire.post("/v1/workflows:validate", definition).json()
    return {fault["path"]: fault["message"] for fault in answer["errors"]}


CERTAIN_FAULTS = [
    ("foo(1)", "calls 'foo', which is not a function"),
    ("inputs.name.contians('x')", "did you mean 'contains'?"),
    ("foo.bar", "names 'foo', which is not defined here"),
    ("input.x == intput.y", "did you mean 'input'?"),
    ("nodes.q.x", "reads node 'q', which the workflow does not have"),
    ("nodes['cond'].x == nodes['kond'].x", "did you mean 'cond'?"),
    ('"a"', "gives a string, and a condition must give true or false"),
    ("1", "gives a number, and a condition must give true or false"),
    ('1 + "a"', "No such overload"),
    ('1 + "a" == 2', "No such overload"),
    ("inputs", "never gives true or false"),
    ("inputs.a + 1", "never gives true or false"),
]


@pytest.mark.parametrize(("expression", "message"), CERTAIN_FAULTS)
def test_a_condition_that_must_fail_is_refused(acme: Wire, expression: str, message: str) -> None:
    question = node("cond", "core.conditional", config={"expression": expression})

    faults = _faults(acme, workflow([question]))

    assert list(faults) == ["nodes.0.config.expression"]
    assert faults["nodes.0.config.expression"].startswith(f"expression {expression!r} ")
    assert message in faults["nodes.0.config.expression"]


@pytest.mark.parametrize(
    "expression",
    [
        "inputs.items.exists(item, item.price > 3) && has(input.x)",
        "nodes.cond.result || nodes['first'].anything",
        "variables.setByARun == 1 && channels.c.size() > 0",
        "type(inputs.a) == int || inputs.a in [1, 2] ? inputs.b : input.c",
        "optional.of(1).hasValue()",
        "inputs.flag",
        "timestamp(inputs.at).getFullYear() == 2026",
        "true",
    ],
)
def test_a_condition_that_may_succeed_is_accepted(acme: Wire, expression: str) -> None:
    question = node("cond", "core.conditional", config={"expression": expression})

    assert _faults(acme, workflow([node("first"), question])) == {}


def test_expressions_in_every_place_are_checked(acme: Wire) -> None:
    rules = [{"when": when, "decision": {"kind": "terminate"}} for when in ("foo.bar", "turn")]
    definition = workflow(
        [
            node("sup", "core.orchestrator.supervisor", config={"rules": rules}),
            node("loop", "core.loop", config={"while": "iteraton < 3"}),
            node("set", "core.setVariable", config={"name": "v", "expression": "outputs.x"}),
            node("port", inputs={"x": {"type": "expression", "expression": "nodes.gone.x"}}),
        ],
        edges=[
            edge("sup", "loop", condition={"type": "expression", "expression": "output.x == y"}),
            edge("loop", "set", condition={"type": "expression", "expression": "status"}),
        ],
    )

    faults = _faults(acme, definition)

    assert set(faults) == {
        "nodes.0.config.rules.0.when",
        "nodes.0.config.rules.1.when",
        "nodes.1.config.while",
        "nodes.2.config.expression",
        "nodes.3.inputs.x",
        "edges.0.condition",
        "edges.1.condition",
    }
    assert faults["nodes.1.config.while"].endswith("did you mean 'iteration'?")


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (
            node("ask", "core.conditional", config={"expression": "inputs.absent > 1"}),
            "node 'ask': expression 'inputs.absent > 1' finds no key 'absent'",
        ),
        (
            node("ask", "core.conditional", config={"expression": "inputs.text"}),
            "node 'ask': expression 'inputs.text' gives a string, "
            "and a condition must give true or false",
        ),
        (
            node("set", "core.setVariable", config={"name": "v", "expression": "inputs.absent"}),
            "node 'set': expression 'inputs.absent' finds no key 'absent'",
        ),
        (
            node("port", inputs={"x": {"type": "expression", "expression": "inputs.absent"}}),
            "node 'port': input 'x' has no value: expression 'inputs.absent' finds no key 'absent'",
        ),
        (
            node("ask", "core.conditional", config={"expression": "inputs.text.contains(1)"}),
            "node 'ask': expression 'inputs.text.contains(1)' calls 'contains' "
            "with arguments that it does not take",
        ),
    ],
)
def test_a_failed_expression_in_a_run_is_named_with_its_node(
    acme: Wire, failing: JsonObject, message: str
) -> None:
    workflow_id = acme.register(workflow([failing]))

    found = acme.run(workflow_id, inputs={"text": "x"})

    assert found["error"]["message"] == message


def test_a_failed_condition_in_a_run_is_named_with_its_edge(acme: Wire) -> None:
    condition = {"type": "expression", "expression": "outputs.absent"}
    workflow_id = acme.register(
        workflow([node("a"), node("b")], edges=[edge("a", "b", condition=condition)])
    )

    found = acme.run(workflow_id)

    assert found["error"]["message"] == (
        "node 'b': the condition of edge 'a-b': expression 'outputs.absent' finds no key 'absent'"
    )
