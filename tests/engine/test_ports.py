from __future__ import annotations

import pytest

from wopr.engine import ports
from wopr.engine.ports import PortFault, port_faults, resolve_inputs
from wopr.protocol.documents import UNSET, Json
from wopr.protocol.workflow import (
    ConnectionPort,
    ExpressionPort,
    PortValue,
    StaticPort,
    VariablePort,
)

SCOPE: dict[str, Json] = {
    "inputs": {"name": "ann"},
    "variables": {"limit": 3, "nothing": None, "gone": UNSET, "user": {"id": "u-1"}},
    "channels": {},
    "nodes": {"fetch": {"rows": [{"id": 7}], "a.b": "whole", "a": {"b": "parts"}}},
}


def test_a_static_value_is_passed_unchanged() -> None:
    assert resolve_inputs({"a": StaticPort(value=None), "b": StaticPort(value=[1])}, SCOPE) == {
        "a": None,
        "b": [1],
    }


def test_an_expression_sees_inputs_variables_and_nodes() -> None:
    port = ExpressionPort(
        expression="inputs.name + string(variables.limit + nodes.fetch.rows[0].id)"
    )

    assert resolve_inputs({"a": port}, SCOPE) == {"a": "ann10"}


def test_a_connection_passes_another_node_s_output() -> None:
    port = ConnectionPort(node_id="fetch", output_key="rows")

    assert resolve_inputs({"rows": port}, SCOPE) == {"rows": [{"id": 7}]}


def test_a_dotted_output_key_is_a_path() -> None:
    port = ConnectionPort(node_id="fetch", output_key="rows.0.id")

    assert resolve_inputs({"id": port}, SCOPE) == {"id": 7}


def test_a_key_with_a_dot_in_its_name_wins_over_the_path() -> None:
    port = ConnectionPort(node_id="fetch", output_key="a.b")

    assert resolve_inputs({"x": port}, SCOPE) == {"x": "whole"}


def test_a_variable_may_be_null_and_null_is_a_value() -> None:
    assert resolve_inputs({"a": VariablePort(variable_name="nothing")}, SCOPE) == {"a": None}


def test_a_dotted_variable_name_is_a_path() -> None:
    assert resolve_inputs({"a": VariablePort(variable_name="user.id")}, SCOPE) == {"a": "u-1"}


@pytest.mark.parametrize(
    "port",
    [
        ConnectionPort(node_id="other", output_key="rows", optional=True),
        ConnectionPort(node_id="fetch", output_key="other", optional=True),
        VariablePort(variable_name="other", optional=True),
        VariablePort(variable_name="gone", optional=True),
    ],
)
def test_an_absent_optional_source_leaves_the_key_out(port: PortValue) -> None:
    assert resolve_inputs({"a": port}, SCOPE) == {}


@pytest.mark.parametrize(
    ("port", "named"),
    [
        (ConnectionPort(node_id="other", output_key="rows"), ["rows", "other"]),
        (ConnectionPort(node_id="fetch", output_key="rows.9"), ["rows.9", "fetch"]),
        (VariablePort(variable_name="gone"), ["gone"]),
        (ExpressionPort(expression="inputs.missing"), ["missing"]),
        (ExpressionPort(expression="nowhere"), ["nowhere"]),
    ],
)
def test_an_absent_required_source_names_the_port(port: PortValue, named: list[str]) -> None:
    with pytest.raises(PortFault) as caught:
        resolve_inputs({"wanted": port}, SCOPE)

    assert caught.value.port == "wanted"
    assert all(name in str(caught.value) for name in ["wanted", *named])


def test_a_scope_without_nodes_or_variables_has_no_sources() -> None:
    port = VariablePort(variable_name="a", optional=True)

    assert resolve_inputs({"a": port}, {}) == {}


def test_registration_names_an_unknown_node_and_an_invalid_expression() -> None:
    ports: dict[str, PortValue] = {
        "a": ConnectionPort(node_id="other", output_key="x", optional=True),
        "b": ExpressionPort(expression="1 +"),
        "c": ConnectionPort(node_id="fetch", output_key="x"),
        "d": ExpressionPort(expression="inputs.x"),
    }

    faults = port_faults(ports, node_ids={"fetch"})

    assert [port for port, _ in faults] == ["a", "b"]
    assert "other" in faults[0][1]


def test_registration_accepts_a_variable_that_is_not_declared() -> None:
    ports = {"a": VariablePort(variable_name="later")}

    assert port_faults(ports, node_ids=set()) == []


def test_a_suggestion_is_searched_only_for_missing_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ports, "suggest_name")
    present = ConnectionPort(node_id="fetch", output_key="rows")
    optional = ConnectionPort(node_id="fetch", output_key="other", optional=True)

    assert resolve_inputs({"a": present, "b": optional}, SCOPE) == {"a": [{"id": 7}]}
