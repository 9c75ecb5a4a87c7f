from __future__ import annotations

from itertools import product

import pytest

from tests.engine.trigger_table import RULES, expected
from tests.support.simulation import REENTRANT, edge, node, sketch, state_of
from wopr.engine.graph import compile_graph
from wopr.engine.state import NodeState, RunState
from wopr.engine.triggers import EdgeStates, Readiness
from wopr.protocol.runs import RunError

STATES = {
    "s": NodeState(status="completed", outputs={"ok": True}),
    "k": NodeState(status="skipped"),
    "f": NodeState(status="failed", error=RunError(code="broken", message="it broke")),
    "p": NodeState(status="running"),
}
COMBINATIONS = ["".join(kinds) for n in (1, 2, 3) for kinds in product(STATES, repeat=n)]


def joined(rules: list[str], kinds: str, when: str = "") -> RunState:
    """Return node `join` after one source per rule, with these outcomes."""
    sources = [f"source{index}" for index in range(len(kinds))]
    edges = [edge(name, "join", rule, when) for name, rule in zip(sources, rules, strict=True)]
    graph = compile_graph(sketch([*map(node, sources), node("join")], edges), REENTRANT)
    return state_of(graph, **dict(zip(sources, (STATES[kind] for kind in kinds), strict=True)))


@pytest.mark.parametrize("kinds", COMBINATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_a_node_s_trigger_rule_covers_every_combination_of_its_edges(rule: str, kinds: str) -> None:
    state = joined([rule] * len(kinds), kinds)

    assert EdgeStates(state).readiness("join") is expected(rule, kinds)


@pytest.mark.parametrize("status", ["pending", "running", "retrying", "suspended"])
def test_an_edge_is_not_taken_before_its_source_has_ended(status: str) -> None:
    state = joined(["all_success"], "p")
    source = NodeState(status=status)  # type: ignore[arg-type]  # one of the statuses by name

    state = state_of(state.graph, source0=source)

    assert EdgeStates(state).readiness("join") is Readiness.WAIT


def test_a_cancelled_source_counts_as_skipped() -> None:
    state = joined(["all_success"], "p")

    state = state_of(state.graph, source0=NodeState(status="cancelled"))

    assert EdgeStates(state).readiness("join") is Readiness.SKIP


def test_a_node_without_edges_is_ready() -> None:
    assert EdgeStates(joined([], "")).readiness("join") is Readiness.READY


def test_edges_with_different_rules_must_all_agree() -> None:
    rules = ["any_failed", "all_success"]

    assert EdgeStates(joined(rules, "fs")).readiness("join") is Readiness.READY
    assert EdgeStates(joined(rules, "fp")).readiness("join") is Readiness.WAIT
    assert EdgeStates(joined(rules, "fk")).readiness("join") is Readiness.SKIP
    assert EdgeStates(joined(rules, "ss")).readiness("join") is Readiness.SKIP


@pytest.mark.parametrize(
    ("when", "kind", "rule", "expected_carry"),
    [
        ("output.ok", "s", "all_success", "success"),
        ("!outputs.ok", "s", "all_success", "skipped"),
        ("!nodes.source0.ok", "s", "all_success", "skipped"),
        ('status == "failed"', "f", "any_failed", "failed"),
        ('error.code == "broken"', "f", "all_complete", "failed"),
        ('error.code == "other"', "f", "any_failed", "skipped"),
        ("output.ok", "f", "all_success", "failed"),
        ("output.ok", "k", "all_success", "skipped"),
    ],
)
def test_a_condition_decides_whether_an_edge_is_taken(
    when: str, kind: str, rule: str, expected_carry: str
) -> None:
    state = joined([rule], kind, when)

    assert EdgeStates(state).edge_state(state.graph.incoming["join"][0]) == expected_carry
