"""The maximum size of a definition, the right to check one, and expressions on large values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, node, variable, workflow
from tests.support.host import ACME, served
from tests.wire.refusals import refusal
from wopr.protocol.documents import JsonObject

VIEWER = "test_viewer_key_of_acme_0123456789"
HUNDRED = [f"n{index}" for index in range(100)]


def conditions(count: int, source: str = "outputs.n > 1") -> JsonObject:
    condition = {"type": "expression", "expression": source}
    edges = [edge("a", "b", id=f"e{index}", condition=condition) for index in range(count)]
    return workflow([node("a"), node("b")], edges=edges)


def comparisons(count: int) -> JsonObject:
    """Return edges whose conditions look for numbers in a list."""
    edges = [
        edge("a", "b", id=f"e{n}", condition={"type": "contains", "left": "v", "right": -n})
        for n in range(count)
    ]
    return workflow([node("a"), node("b")], edges=edges)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (
            workflow([node(f"n{index}") for index in range(1001)], edges=[]),
            "has 1001 nodes, and at most 1000",
        ),
        (
            workflow([node("a")], edges=[edge("a", "a", id=f"e{n}") for n in range(5001)]),
            "has 5001 edges, and at most 5000",
        ),
        (
            workflow([node(f"l{n}", "core.loop", config={"times": 1}) for n in range(101)]),
            "has 101 nodes that can head a loop, and at most 100",
        ),
        (conditions(501), "has 501 expressions, and at most 500"),
        (comparisons(501), "has 501 expressions, and at most 500"),
        (
            conditions(20, f"outputs.n == '{'x' * 4000}'"),
            "characters of expressions, and at most 65536",
        ),
        (
            workflow([node("a")], description="x" * 1024 * 1024),
            "bytes, and at most 1048576",
        ),
    ],
    ids=["nodes", "edges", "loops", "expressions", "comparisons", "expression-bytes", "bytes"],
)
def test_a_definition_above_a_limit_is_refused_with_the_number_and_the_limit(
    acme: Wire, definition: JsonObject, why: str
) -> None:
    checked = acme.post("/v1/workflows:validate", definition).json()
    told = refusal(acme.post("/v1/workflows", definition), 400)

    assert not checked["valid"]
    assert why in checked["errors"][0]["message"]
    assert told["error"] == "validation_error"
    assert why in told["message"]


def test_the_operator_sets_the_maximum_size_of_a_definition(tmp_path: Path) -> None:
    limits = {"WOPR_MAX_WORKFLOW_NODES": "2", "WOPR_MAX_WORKFLOW_EDGES": "1"}
    definition = workflow([node("a"), node("b"), node("c")])

    with served(tmp_path, **limits) as host, Wire(host.url, ACME) as acme:
        told = refusal(acme.post("/v1/workflows", definition), 400)

    assert [fault["path"] for fault in told["details"]["errors"]] == ["nodes", "edges"]


def test_a_key_that_only_reads_cannot_have_definitions_checked(tmp_path: Path) -> None:
    keys = {"WOPR_API_KEYS": f"{VIEWER}:acme:viewer"}

    with served(tmp_path, **keys) as host, Wire(host.url, VIEWER) as viewer:
        told = refusal(viewer.post("/v1/workflows:validate", workflow([node("a")])), 403)

    assert "workflows:write" in told["message"]


def test_a_large_definition_runs(acme: Wire) -> None:
    edges = [
        edge(one, other) for at, one in enumerate(HUNDRED) for other in HUNDRED[at + 1 : at + 30]
    ]
    definition = workflow([node(name) for name in HUNDRED], edges=edges)

    assert acme.run(acme.register(definition))["status"] == "completed"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("variables.items.filter(i, i.n > 0).size()", 300),
        ("variables.items.exists(i, variables.items.exists(j, j.n == -1))", False),
        ("variables.items.map(i, i.n)[0]", 1),
    ],
)
def test_an_expression_over_a_large_list_is_evaluated_in_a_subprocess(
    acme: Wire, source: str, expected: object
) -> None:
    nodes = [node("a", "core.setVariable", config={"name": "found", "expression": source})]
    name = acme.register(workflow(nodes, variables=[variable("items", "array")]))

    ended = acme.run(name, {"items": [{"n": 1, "text": "x"}] * 300})

    assert ended["status"] == "completed"
    assert ended["variables"]["found"] == expected


def test_an_expression_that_fails_in_a_subprocess_says_why(acme: Wire) -> None:
    source = "variables.items.exists(i, i.missing == 1)"
    nodes = [node("a", "core.setVariable", config={"name": "found", "expression": source})]
    name = acme.register(workflow(nodes, variables=[variable("items", "array")]))

    ended = acme.run(name, {"items": [{"n": 1, "text": "x"}] * 3000})

    assert ended["error"]["code"] == "expression_error"
    assert "missing" in ended["error"]["message"]


def test_an_edge_condition_on_a_large_value_is_evaluated(acme: Wire) -> None:
    condition = {"type": "expression", "expression": "variables.items.all(i, i.n == 1)"}
    definition = workflow(
        [node("a"), node("b")],
        edges=[edge("a", "b", condition=condition)],
        variables=[variable("items", "array")],
    )

    run_id = acme.create(acme.register(definition), {"items": [{"n": 1}] * 3000})

    assert acme.finished(run_id)["status"] == "completed"
    assert "node.skipped" not in acme.types(run_id)
