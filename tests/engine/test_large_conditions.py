"""Conditions and expressions on large values: evaluation in subprocesses and its cost."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar, cast

import msgspec
import pytest

from tests.support.simulation import EPOCH, node, sketch, state_of
from wopr.engine.cel import cost as expression_cost
from wopr.engine.cel.cost import extent_of
from wopr.engine.cel.expressions import ExpressionFault, condition_holds, evaluate
from wopr.engine.graph import compile_graph
from wopr.engine.limits import HostLimits
from wopr.engine.plan import FailNode, Skip, Step, plan
from wopr.engine.state import NodeState, RunState
from wopr.engine.triggers import MAX_CONDITION_COST
from wopr.protocol import offloading
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.offloading import Results, WorkNeeded, encode_call, known_results
from wopr.protocol.workflow import EdgeCondition

T = TypeVar("T")
NUMBERS: list[Json] = [1] * 100_000
LARGE: list[tuple[EdgeCondition, Json, bool]] = [
    (EdgeCondition(type="contains", left="v", right=-1), NUMBERS, False),
    (EdgeCondition(type="contains", left="v", right=1), NUMBERS, True),
    (EdgeCondition(type="contains", left="v", right=[2]), [[1]] * 50_000, False),
    (EdgeCondition(type="contains", left="v", right="ab"), "a" * 2_000_000 + "b", True),
    (EdgeCondition(type="regex", left="v", right="a{9}b$"), "a" * 500_000 + "b", True),
]


def completed(work: Callable[[], T], results: Results | None = None) -> tuple[T, int]:
    """Run the offloaded work, and return its result and how often it was offloaded."""
    results = Results() if results is None else results
    while True:
        try:
            with known_results(results):
                return work(), len(results)
        except WorkNeeded as needed:
            module, name, arguments = msgspec.json.decode(cast("bytes", needed.work))
            results[needed.key] = getattr(import_module(module), name)(*arguments)


def decided(conditions: list[JsonObject], value: Json) -> RunState:
    """Return a run in which `a` has output a value, and edges with these conditions lead to `b`."""
    ends = {"sourceNodeId": "a", "targetNodeId": "b", "triggerRule": "all_success"}
    edges = [{"id": f"e{n}", **ends, "condition": each} for n, each in enumerate(conditions)]
    graph = compile_graph(sketch([node("a"), node("b")], edges), ())
    return state_of(graph, a=NodeState(status="completed", outputs={"v": value}))


def steps(state: RunState) -> tuple[Step, ...]:
    return plan(state, EPOCH, HostLimits()).steps


@pytest.mark.parametrize(("condition", "value", "expected"), LARGE)
def test_a_condition_on_a_large_value_is_evaluated_in_a_subprocess(
    condition: EdgeCondition, value: Json, expected: bool
) -> None:
    result, offloaded = completed(lambda: condition_holds(condition, {"outputs": {"v": value}}))

    assert result is expected
    assert offloaded == 1


@pytest.mark.parametrize("right", [1, "x", [1]])
def test_a_condition_on_a_small_value_is_evaluated_in_the_process(right: Json) -> None:
    condition = EdgeCondition(type="contains", left="v", right=right)

    assert condition_holds(condition, {"outputs": {"v": [right] * 100}}) is True


def test_many_medium_conditions_are_not_all_evaluated_in_the_process() -> None:
    conditions: list[JsonObject] = [
        {"type": "contains", "left": "v", "right": -n} for n in range(1, 101)
    ]
    state = decided(conditions, [1] * 5000)

    taken, offloaded = completed(lambda: steps(state))

    assert taken == (Skip("b", "condition"),)
    assert offloaded == 80


def test_a_node_whose_conditions_cost_too_much_together_fails_with_the_reason() -> None:
    values = [1] * 240_000
    conditions: list[JsonObject] = [
        {"type": "expression", "expression": f"size(output.v) > {n}"} for n in range(90)
    ]

    [step], offloaded = completed(lambda: steps(decided(conditions, values)))

    assert offloaded == MAX_CONDITION_COST // (20 * len(values))
    assert isinstance(step, FailNode)
    assert step.error.code == "expression_error"
    assert "edges to node 'b' cost" in step.error.message
    assert f"at most {MAX_CONDITION_COST}" in step.error.message


def test_a_value_of_many_expressions_is_measured_once_and_each_call_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured, encoded = list[int](), list[str]()

    def counted_extent(value: Json) -> expression_cost.Extent:
        measured.append(id(value))
        return extent_of(value)

    def counted_call(function: Callable[..., Json], *arguments: Json) -> bytes:
        encoded.append(str(arguments[0]))
        return encode_call(function, *arguments)

    monkeypatch.setattr(expression_cost, "extent_of", counted_extent)
    monkeypatch.setattr(offloading, "encode_call", counted_call)
    sources = [f"size(v.items) > {n} && v.items.size() > 0" for n in range(20)]
    known: dict[str, Json] = {"v": {"items": NUMBERS}}

    values, offloaded = completed(lambda: [evaluate(source, known) for source in sources])

    assert values == [True] * 20
    assert offloaded == 20
    assert measured == [id(NUMBERS)]
    assert encoded == sources


def test_an_equal_call_on_another_value_has_a_separate_result() -> None:
    results = Results()
    source = "v.items[0] == 1"

    first, _ = completed(lambda: evaluate(source, {"v": {"items": NUMBERS}}), results)
    other, offloaded = completed(lambda: evaluate(source, {"v": {"items": [2, *NUMBERS]}}), results)

    assert (first, other) == (True, False)
    assert offloaded == 2


def test_a_list_with_too_many_values_is_refused_without_measuring_them() -> None:
    class Unread(list[Json]):
        def __iter__(self) -> None:  # type: ignore[override]  # nobody may ask
            raise AssertionError("the items were read")

    with pytest.raises(ExpressionFault, match="could take too long"):
        evaluate("size(v.items) > 0", {"v": {"items": Unread([1] * 300_000)}})
