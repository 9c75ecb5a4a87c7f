from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.api.desk import Reply, Shouted, Ticket, desk, shout
from wopr import Agent, Workflow, WorkflowError, any_of, expr, tool
from wopr.nodes.builtin import builtin_registry
from wopr.protocol.documents import JsonObject
from wopr.protocol.workflow import WorkflowDefinition, WorkflowSettings
from wopr.runs.definitions.checks import check_definition

AnyFlow = Workflow[Any, Any]
CLERK = Agent("acme.clerk", model="test:clerk")


@tool
def lookup(order: str) -> str:
    return order


def faults_of(flow: AnyFlow) -> tuple[str, ...]:
    with pytest.raises(WorkflowError) as refused:
        flow.build()
    return refused.value.faults


def edges_of(flow: AnyFlow) -> list[tuple[str, str, str]]:
    return [(e.source_node_id, e.target_node_id, e.trigger_rule) for e in flow.build().edges]


def test_a_built_workflow_is_valid_for_the_host() -> None:
    registry = builtin_registry()
    registry.add(shout.__wopr_node__)  # type: ignore[attr-defined]  # set by the decorator

    definition = check_definition(desk().document(), registry)

    assert definition == desk().build()
    assert [node.type_id for node in definition.nodes] == [
        "acme.shout",
        "core.approvalGate",
        "core.end",
    ]


def test_inputs_become_variables_with_their_types_and_defaults() -> None:
    variables = {variable.name: variable for variable in desk().build().variables}

    assert {name: (v.type, v.required) for name, v in variables.items()} == {
        "customer": ("string", True),
        "text": ("string", True),
        "priority": ("number", False),
        "note": ("string", False),
    }
    assert variables["priority"].default_value == 1


def test_an_input_of_several_types_is_not_declared() -> None:
    @dataclass
    class Either:
        value: str | int

    flow = Workflow("either", inputs=Either)
    flow.add("copy", "core.identity", value=flow.inputs.value)

    assert flow.build().variables == []


def test_every_notation_of_an_edge_gives_the_protocol_s_edge() -> None:
    flow = Workflow("ways")
    a, b, c, d, e = (flow.add(name, "core.noop") for name in "abcde")

    a >> [b, c]
    any_of(b, c) >> d
    a.on_failure >> e
    d.always >> e

    assert edges_of(flow) == [
        ("a", "b", "all_success"),
        ("a", "c", "all_success"),
        ("b", "d", "any_success"),
        ("c", "d", "any_success"),
        ("a", "e", "any_failed"),
        ("d", "e", "all_complete"),
    ]


def test_a_join_has_an_edge_from_every_node_of_a_group() -> None:
    flow = Workflow("chain")
    a, b, c, d = (flow.add(name, "core.noop") for name in "abcd")

    a >> [b, c] >> d

    assert [(source, target) for source, target, _ in edges_of(flow)] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "d"),
        ("c", "d"),
    ]


def test_then_is_the_same_as_the_arrow() -> None:
    flow = Workflow("then")
    a, b, c, d = (flow.add(name, "core.noop") for name in "abcd")

    a.then(b, c).then(d)

    assert [(source, target) for source, target, _ in edges_of(flow)] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "d"),
        ("c", "d"),
    ]


def test_a_condition_is_stored_on_its_edge() -> None:
    flow = Workflow("condition")
    a, b = flow.add("a", "core.noop"), flow.add("b", "core.noop")

    a.when("nodes.a.ok") >> b

    [edge] = flow.build().edges
    assert msgspec.to_builtins(edge)["condition"] == {"expression": "nodes.a.ok"}


def test_two_edges_between_the_same_nodes_have_different_ids() -> None:
    flow = Workflow("twice")
    a, b = flow.add("a", "core.noop"), flow.add("b", "core.noop")

    a.when("outputs.x == 1") >> b
    a.when("outputs.x == 2") >> b

    assert [edge.id for edge in flow.build().edges] == ["a-b", "a-b-2"]


def test_a_cycle_without_a_loop_node_is_refused_with_its_node_names() -> None:
    flow = Workflow("cycle")
    a, b = flow.add("a", "core.noop"), flow.add("b", "core.noop")

    a >> b >> a

    [fault] = faults_of(flow)
    assert "a" in fault
    assert "is a cycle without a core.loop" in fault


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda flow: flow.inputs.custmer, "did you mean 'customer'?"),
        (lambda flow: flow.inputs["nobody"], "there is no 'nobody'"),
        (lambda flow: flow.add("x", "core.dely"), "node x: there is no node type 'core.dely'"),
        (
            lambda flow: flow.add("x", "acme.block"),
            "node x: there is no node type 'acme.block': for your own node type, pass the "
            "function declared with @node",
        ),
        (lambda flow: flow.add("x", faults_of), "node x: faults_of is not declared with @node"),
        (lambda flow: flow.add("x", CLERK), "is an agent: use `agent(...)` to add a node for it"),
        (lambda flow: flow.add("x", flow), "use `sub(...)` to run it in another workflow"),
        (
            lambda flow: flow.add("x", lookup),
            "node x: lookup is a tool: use it in the `tools` of an agent",
        ),
        (lambda flow: flow.add("loud", "core.noop"), "there already is a node 'loud'"),
        (lambda flow: flow.nodes["loud"]["txt"], "there is no output 'txt': did you mean 'text'?"),
        (lambda flow: flow.nodes["review"]["artefact"], "did you mean 'artifact'?"),
        (lambda flow: flow.variable("text", str), "there already is a variable 'text'"),
        (
            lambda flow: flow.nodes["loud"] >> Workflow("other").add("far", "core.noop"),
            "edge loud >> far: node 'far' belongs to another workflow",
        ),
        (lambda flow: flow.nodes["loud"] >> "review", "edge from loud: 'review' is not a node"),
        (lambda flow: flow.nodes["loud"] >> [None], "edge from loud: None is not a node"),
        (
            lambda flow: flow.agent("x", "acme.clerk", prompt="Hi"),
            "node x: 'acme.clerk' is not an agent",
        ),
    ],
)
def test_a_missing_name_fails_where_it_is_written(
    spoil: Callable[[AnyFlow], object], named: str
) -> None:
    flow = desk()

    with pytest.raises(WorkflowError) as refused:
        spoil(flow)

    assert named in str(refused.value)


def test_missing_unknown_and_mistyped_inputs_are_named_together() -> None:
    flow = Workflow("wrong", inputs=Ticket)
    flow.add("silent", shout)
    flow.add("odd", shout, text=flow.inputs.priority, mark=3)

    assert faults_of(flow) == (
        "node silent: input 'text' is missing",
        "node odd: input 'text' must be string, not number",
        "node odd: input 'mark' does not exist: did you mean 'marks'?",
    )


def test_a_prompt_that_is_not_text_is_refused_before_the_run() -> None:
    flow = Workflow("wrong", inputs=Ticket)
    flow.agent("ask", Agent("acme.clerk", model="a:b"), prompt=flow.inputs.priority)

    assert faults_of(flow) == ("node ask: input 'prompt' must be string, not number",)


def test_an_output_of_the_wrong_type_is_named() -> None:
    flow = Workflow("wrong", inputs=Ticket, outputs=Reply)
    loud = flow.add("loud", shout, text=flow.inputs.text)
    end = flow.end(text=loud["length"])
    loud >> end

    assert faults_of(flow) == ("node end: output 'text' must be string, not number",)


def test_outputs_that_no_node_returns_are_named() -> None:
    flow = Workflow("wrong", outputs=Reply)
    flow.add("a", "core.noop")

    assert faults_of(flow) == ("outputs are Reply, but no end() sets them",)


def test_a_value_of_a_node_that_is_not_upstream_is_refused_with_the_missing_edge() -> None:
    flow = Workflow("order", inputs=Ticket)
    first = flow.add("first", shout, text=flow.inputs.text)
    flow.add("second", "core.identity", text=first["text"])

    assert faults_of(flow) == (
        "node second: input 'text' reads node 'first', which does not come before it: "
        "write first >> second",
    )


def test_a_value_of_another_workflow_is_refused() -> None:
    flow = Workflow("order", inputs=Ticket)
    flow.add("second", "core.identity", text=desk().nodes["loud"]["text"])

    assert faults_of(flow) == ("node second: input 'text' reads 'loud' of another workflow",)


def test_conditions_and_expressions_are_checked_for_missing_nodes_and_outputs() -> None:
    flow = desk()
    loud, end = flow.nodes["loud"], flow.nodes["end"]
    loud.when("outputs.lenght > 3 && nodes.lout.length > 3") >> end
    flow.add("more", "core.identity", value=expr("nodes.nobody.text"))

    assert faults_of(flow) == (
        "node more: input 'value': there is no node 'nobody': expected one of end, loud, more, review",
        "edge loud >> end: there is no node 'lout': did you mean 'loud'?",
        "edge loud >> end: node 'loud' has no output 'lenght': did you mean 'length'?",
    )


def test_an_invalid_condition_is_refused() -> None:
    flow = Workflow("syntax")
    a, b = flow.add("a", "core.noop"), flow.add("b", "core.noop")
    a.when("1 +") >> b

    [fault] = faults_of(flow)

    assert fault.startswith("edges.0.condition: expression")


def test_an_invalid_config_is_reported_with_its_node() -> None:
    flow = Workflow("config")
    flow.add("wait", "core.delay", config={"ms": "soon"})

    assert any(fault.startswith("node wait: config") for fault in faults_of(flow))


def test_a_part_of_an_object_is_read_by_its_members() -> None:
    @dataclass
    class Order:
        shop: Ticket

    flow = Workflow("parts", inputs=Order)
    loud = flow.add("loud", shout, text=flow.inputs.shop["text"])

    assert msgspec.to_builtins(loud.wire.inputs["text"]) == {
        "type": "variable",
        "variableName": "shop.text",
    }
    with pytest.raises(WorkflowError, match="there is no 'txt'"):
        flow.inputs.shop["txt"]


def test_a_child_workflow_is_included_and_its_inputs_are_checked() -> None:
    flow = Workflow("parent")
    flow.sub("child", desk(), customer="Ada")

    assert faults_of(flow) == ("node child: input 'text' is missing",)
    assert [child.id for child in flow.children] == ["desk"]


def test_a_child_sets_variables_of_its_parent() -> None:
    flow = Workflow("parent")
    said = flow.variable("said", str)
    child = flow.sub("child", desk(), into={"said": "text"}, customer="Ada", text="hi")
    end = flow.end(text=said)
    child >> end

    built: JsonObject = msgspec.to_builtins(flow.build())

    assert built["nodes"][0]["config"]["outputMapping"] == {"said": "text"}
    assert built["nodes"][1]["inputs"]["text"] == {"type": "variable", "variableName": "said"}


def test_questions_become_a_clarification_node() -> None:
    flow = Workflow("questions")
    ask = flow.ask("which", colour="Which colour?")
    end = flow.end(colour=ask["answers"]["colour"])
    ask >> end

    assert flow.build().nodes[0].config == {
        "questions": [{"id": "colour", "question": "Which colour?"}]
    }


def test_an_explicit_version_and_settings_are_kept() -> None:
    flow = Workflow("settled", version="7", settings=WorkflowSettings(timeout=1000))
    flow.add("a", "core.noop")

    built = flow.build()

    assert (built.version, built.settings.timeout) == ("7", 1000)


def test_without_a_version_the_content_hash_is_the_version() -> None:
    one, other = desk(), desk()
    other.add("more", "core.noop")

    assert one.build().version == desk().build().version
    assert one.build().version != other.build().version


def test_the_same_workflow_as_json_is_the_same_workflow() -> None:
    written = msgspec.json.encode(desk().document())

    assert msgspec.json.decode(written, type=WorkflowDefinition) == desk().build()


def test_inputs_of_a_run_are_checked_before_it_starts() -> None:
    flow = desk()

    assert flow.inputs_json(Ticket("Ada", "hello")) == {
        "customer": "Ada",
        "text": "hello",
        "priority": 1,
    }
    with pytest.raises(WorkflowError, match="missing required field `text`"):
        flow.inputs_json({"customer": "Ada"})


def test_the_result_of_a_node_function_has_its_declared_type() -> None:
    flow = desk()

    assert set(Shouted.__struct_fields__) == flow.nodes["loud"].outputs["properties"].keys()
