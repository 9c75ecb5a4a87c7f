from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulation import (
    EPOCH,
    REENTRANT,
    Ending,
    Simulation,
    edge,
    failure,
    node,
    obedient,
    sketch,
    state_of,
)
from wopr.engine import triggers
from wopr.engine.cel.expressions import IsLarge, condition_holds
from wopr.engine.graph import compile_graph, find_cycle
from wopr.engine.limits import HostLimits
from wopr.engine.plan import Start, plan
from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.workflow import EdgeCondition, WorkflowDefinition, WorkflowNode

loop_settings = settings(max_examples=60, deadline=None)


def loop(node_id: str, times: int) -> JsonObject:
    return node(node_id, "core.loop", config={"times": times})


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[JsonObject], list[JsonObject]]:
    """Generate a body between `head` and its back edge: stages of one to three parallel nodes."""
    widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    stages = [[f"b{depth}{side}" for side in range(width)] for depth, width in enumerate(widths)]
    edges = [edge("head", name, when="!output.done") for name in stages[0]]
    for before, after in pairwise(stages):
        edges += [edge(source, target) for source in before for target in after]
    edges += [edge(name, "last") for name in stages[-1]] + [edge("last", "head")]
    return [*(node(name) for stage in stages for name in stage), node("last")], edges


def counted(times: int, limit: int = 5) -> WorkflowDefinition:
    """Return a loop that is entered from `start`, repeats `body` and leaves to `after`."""
    return sketch(
        [node("start"), loop("head", times), node("body"), node("after")],
        [
            edge("start", "head"),
            edge("head", "body", when="!output.done"),
            edge("body", "head"),
            edge("head", "after", when="output.done"),
        ],
        maxLoopbackIterations=limit,
    )


def nested(outer: int, inner: int) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return a loop inside a loop; the inner one's body is `body`."""
    return [loop("outer", outer), loop("inner", inner), node("body"), node("after")], [
        edge("outer", "inner", when="!output.done"),
        edge("inner", "body", when="!output.done"),
        edge("body", "inner"),
        edge("inner", "outer", when="output.done"),
        edge("outer", "after", when="output.done"),
    ]


@loop_settings
@given(bodies(), st.integers(0, 7), st.integers(1, 7), st.randoms(use_true_random=False))
def test_a_body_runs_as_often_as_its_loop_says_or_until_the_limit(
    body: tuple[list[JsonObject], list[JsonObject]], times: int, limit: int, random: Random
) -> None:
    nodes, edges = body
    nodes = [loop("head", times), *nodes, node("after")]
    edges = [*edges, edge("head", "after", when="output.done")]
    run = Simulation(sketch(nodes, edges, maxLoopbackIterations=limit))

    run.run(random.choice)

    starts = run.about("node.started")
    within = times <= limit
    assert {starts.count(found["id"]) for found in nodes[1:-1]} == {times if within else limit + 1}
    assert starts.count("after") == within
    assert run.state.status == ("completed" if within else "failed")


def test_one_round_too_many_is_a_loopback_limit_error() -> None:
    run = Simulation(counted(times=3, limit=2))

    run.run()

    assert run.types()[-2:] == ["workflow.loopback-limit", "run.failed"]
    assert run.log[-2].payload == {"nodeId": "head", "iterations": 3, "limit": 2}
    assert run.state.error is not None
    assert run.state.error.code == "loop_limit_exceeded"


def test_two_loops_that_reach_their_limits_together_end_the_run_once() -> None:
    nodes = [loop("head", 9), node("body"), loop("head2", 9), node("body2")]
    edges = [edge("head", "body"), edge("body", "head")]
    edges += [edge("head2", "body2"), edge("body2", "head2")]
    names = [found["id"] for found in nodes]
    run = Simulation(sketch(nodes, edges, maxLoopbackIterations=1), inline=names)

    run.run()

    assert run.types()[-2:] == ["workflow.loopback-limit", "run.failed"]
    assert run.types().count("run.failed") == 1


def test_a_run_s_own_limit_on_rounds_is_a_cap() -> None:
    run = Simulation(counted(times=5), maxLoopIterations=2)

    run.run()

    breach = run.log[-2]
    assert breach.type == "cap.breached"
    assert breach.node_id == "head"
    assert breach.payload == {"kind": "loop-iterations", "limit": 2, "observed": 3}


def test_a_node_after_a_loop_waits_for_the_last_round() -> None:
    run = Simulation(counted(times=2))

    run.run()

    assert run.about("node.started") == [
        *("start", "head", "body", "head", "body", "head"),
        "after",
    ]
    assert run.about("node.skipped") == ["body"]


@loop_settings
@given(st.integers(0, 4), st.integers(0, 4))
def test_an_inner_loop_runs_all_its_rounds_in_every_round_of_the_outer(
    outer: int, inner: int
) -> None:
    run = Simulation(sketch(*nested(outer, inner)))

    run.run()

    starts = run.about("node.started")
    assert run.state.status == "completed"
    assert starts.count("body") == outer * inner
    assert starts.count("inner") == outer * (inner + 1)
    assert (starts.count("after"), starts[-1]) == (1, "after")


def test_a_loop_inside_a_loop_has_its_own_members_and_back_edge() -> None:
    graph = compile_graph(sketch(*nested(1, 1)), REENTRANT)

    assert graph.loops["outer"].members == {"outer", "inner", "body"}
    assert graph.loops["inner"].members == {"inner", "body"}
    assert [found.id for found in graph.loops["inner"].back] == ["body-inner"]
    assert [found.id for found in graph.incoming["inner"]] == ["outer-inner"]


def test_the_outer_loop_is_the_one_that_control_enters_by() -> None:
    nodes, edges = nested(1, 1)
    entered = [*reversed(nodes), node("start")], [*edges, edge("start", "outer")]

    graph = compile_graph(sketch(*entered), REENTRANT)

    assert graph.loops["outer"].members == {"outer", "inner", "body"}
    assert graph.loops["inner"].members == {"inner", "body"}


def test_an_outer_loop_waits_for_an_inner_one() -> None:
    nodes, edges = nested(outer=2, inner=2)
    shortcut = [edge("outer", "short", when="!output.done"), edge("short", "outer")]
    run = Simulation(sketch([*nodes, node("short")], [*edges, *shortcut]))

    run.run(lambda running: "short" if "short" in running else running[0])

    assert run.state.status == "completed"
    assert run.about("node.started").count("body") == 4


def test_a_loop_can_be_closed_by_a_failure_handler() -> None:
    def fails_twice(state: RunState, found: WorkflowNode) -> Ending:
        if found.id == "work" and state.nodes["head"].iteration < 2:
            return failure(retryable=False)
        return obedient(state, found)

    nodes = [loop("head", 9), node("work"), node("mend"), node("after")]
    edges = [
        edge("head", "work", when="!output.done"),
        edge("work", "mend", "any_failed"),
        edge("mend", "head"),
        edge("work", "after"),
    ]
    run = Simulation(sketch(nodes, edges), fails_twice)

    run.run()

    assert run.state.status == "completed"
    assert run.about("node.failed") == ["work", "work"]
    assert run.about("node.started")[-2:] == ["work", "after"]


def test_a_back_edge_that_cannot_be_evaluated_ends_the_run() -> None:
    nodes = [loop("head", 1), node("body"), node("after"), node("rescue")]
    edges = [
        edge("head", "body"),
        edge("body", "head", when="nodes.absent.ok"),
        edge("head", "after", "all_complete"),
        edge("after", "rescue", "all_complete"),
    ]
    run = Simulation(sketch(nodes, edges))

    run.run()

    assert run.state.status == "failed"
    assert run.about("node.failed") == ["after", "head"]
    assert run.state.error is not None
    assert run.state.error.code == "expression_error"


def test_a_cycle_without_a_loop_node_is_named_in_order() -> None:
    nodes = [node("a"), node("b"), node("c"), loop("head", 1)]
    edges = [edge("a", "b"), edge("b", "c"), edge("c", "a"), edge("c", "head"), edge("head", "c")]

    definition = sketch(nodes, edges)
    found = find_cycle(definition.nodes, definition.edges, REENTRANT)

    assert "".join(found) in ("abc", "bca", "cab")


def test_a_plan_evaluates_each_condition_once_at_any_loop_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[str] = []

    def counted_holds(
        condition: EdgeCondition, known: Mapping[str, Json], is_large: IsLarge
    ) -> bool:
        decided.append(str(condition.expression))
        return condition_holds(condition, known, is_large)

    heads = [f"l{number}" for number in range(20)]
    exits = [f"o{number}" for number in range(5)]
    edges = [edge(one, other) for one, other in pairwise([*heads, "x"])]
    edges += [edge("x", head, when=f"'{head}' == ''") for head in heads]
    edges += [edge("x", name) for name in exits]
    nodes = [*(loop(head, 1) for head in heads), *map(node, ["x", *exits])]
    ended = {name: NodeState(status="completed") for name in [*heads, "x"]}
    state = state_of(compile_graph(sketch(nodes, edges), REENTRANT), **ended)
    monkeypatch.setattr(triggers, "condition_holds", counted_holds)

    steps = plan(state, EPOCH, HostLimits()).steps

    assert steps == tuple(map(Start, exits))
    assert len(decided) == len(set(decided)) == len(heads)
