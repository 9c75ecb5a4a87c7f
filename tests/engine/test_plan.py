from __future__ import annotations

import pytest

from tests.support.simulation import (
    EPOCH,
    IDENTITY,
    REENTRANT,
    Behaviour,
    Ending,
    Simulation,
    edge,
    failure,
    node,
    sketch,
)
from wopr.engine.graph import compile_graph
from wopr.engine.limits import HostLimits
from wopr.engine.outcome import Completed
from wopr.engine.plan import Breach, FailRun, Plan, Skip, Start, plan
from wopr.engine.state import RunState, initial_state
from wopr.protocol.documents import JsonObject
from wopr.protocol.workflow import WorkflowNode

RETRIED_AFTER_50_MS = {"maxRetries": 1, "backoff": {"initialMs": 50}}


def failing(*names: str) -> Behaviour:
    """Fail these nodes permanently; the others complete with their own id as output."""

    def behave(_: RunState, found: WorkflowNode) -> Ending:
        if found.id in names:
            return failure("broken", retryable=False)
        return Completed({"by": found.id})

    return behave


def skipped(run: Simulation) -> dict[str, str]:
    return {
        event.payload["nodeId"]: event.payload["reason"]
        for event in run.log
        if event.type == "node.skipped"
    }


# Beginning and end


def test_a_run_without_events_plans_nothing() -> None:
    empty = initial_state(IDENTITY, compile_graph(sketch([node("a")]), REENTRANT))

    assert plan(empty, EPOCH, HostLimits()) == Plan((), None)


def test_an_ended_run_plans_nothing() -> None:
    run = Simulation(sketch([node("a")]))
    run.run()

    assert run.plan() == Plan((), None)


def test_nodes_without_sources_start_together_in_the_order_of_the_definition() -> None:
    run = Simulation(sketch([node("b"), node("a"), node("c")], [edge("a", "c")]))

    assert run.plan().steps == (Start("b"), Start("a"))


def test_a_run_waits_while_a_node_is_in_flight() -> None:
    run = Simulation(sketch([node("a"), node("b")], [edge("a", "b")]))
    run.take_steps()

    assert run.plan().steps == ()


def test_the_primary_node_s_outputs_are_the_run_s_outputs() -> None:
    nodes = [node("a", outputRole="primary"), node("b", outputRole="secondary")]
    run = Simulation(sketch(nodes, [edge("a", "b")]), failing())

    run.run()

    assert run.state.outputs == {"by": "a"}


def test_without_a_primary_node_the_last_nodes_outputs_are_stored_by_name() -> None:
    nodes = [node("a"), node("b"), node("c", disabled=True)]
    run = Simulation(sketch(nodes, [edge("a", "b"), edge("a", "c")]), failing())

    run.run()

    assert run.state.outputs == {"b": {"by": "b"}}


# Skips


def test_a_skipped_node_has_a_reason() -> None:
    nodes = [node("a"), node("off", disabled=True), node("unmet"), node("next"), node("broken")]
    edges = [
        edge("a", "unmet", when="false"),
        edge("unmet", "next"),
        edge("broken", "listens", "all_complete"),
        edge("broken", "hindered", "none_failed"),
    ]
    run = Simulation(sketch([*nodes, node("listens"), node("hindered")], edges), failing("broken"))

    run.run()

    assert skipped(run) == {
        "off": "disabled",
        "unmet": "condition",
        "next": "upstream-skipped",
        "hindered": "upstream-failed",
    }


def test_skips_are_settled_before_anything_starts() -> None:
    nodes = [node("a", disabled=True), node("b"), node("c")]
    run = Simulation(
        sketch(nodes, [edge("a", "c", "all_complete"), edge("b", "c", "all_complete")])
    )

    assert run.plan().steps == (Skip("a", "disabled"),)


# Failures


def test_an_unhandled_failure_ends_the_run_while_others_are_in_flight() -> None:
    run = Simulation(sketch([node("slow"), node("bad")]), failing("bad"))
    run.take_steps()

    run.settle("bad")

    assert run.plan().steps[0] == FailRun("bad", failure("broken", retryable=False).error)
    run.take_steps()
    assert run.types()[-2:] == ["node.cancelled", "run.failed"]
    assert run.state.error is not None
    assert run.state.error.code == "broken"


@pytest.mark.parametrize("rule", ["any_failed", "all_complete"])
def test_a_failure_that_a_node_handled_does_not_fail_the_run(rule: str) -> None:
    run = Simulation(
        sketch([node("bad"), node("mend")], [edge("bad", "mend", rule)]), failing("bad")
    )

    run.run()

    assert run.state.status == "completed"
    assert run.state.outputs == {"mend": {"by": "mend"}}


def test_a_failure_whose_listener_was_skipped_fails_the_run_at_the_end() -> None:
    edges = [edge("bad", "mend", "any_failed", when='error.code == "other"')]
    run = Simulation(sketch([node("bad"), node("mend"), node("slow")], edges), failing("bad"))

    run.run()

    assert run.about("node.started") == ["bad", "slow"]
    assert run.about("node.completed") == ["slow"]
    assert run.state.status == "failed"


def test_a_join_without_a_failure_edge_does_not_handle_a_failure() -> None:
    edges = [
        edge("bad", "join", "all_complete", when='error.code == "other"'),
        edge("good", "join", "all_complete"),
    ]
    run = Simulation(sketch([node("bad"), node("good"), node("join")], edges), failing("bad"))

    run.run()

    assert "join" in run.about("node.completed")
    assert run.state.status == "failed"


@pytest.mark.parametrize("change", [{"next": "mended"}, {}], ids=["changed", "gone"])
def test_a_failure_stays_handled_when_its_condition_no_longer_holds(change: JsonObject) -> None:
    edges = [edge("bad", "mend", "any_failed", when='variables.state == "broken"')]
    run = Simulation(sketch([node("bad"), node("mend")], edges), failing("bad"))
    run.add("variable.changed", {"name": "state", "next": "broken"})
    run.take_steps()
    run.settle("bad")
    run.take_steps()

    run.add("variable.changed", {"name": "state", **change})
    run.run()

    assert run.state.status == "completed"


def test_a_join_with_an_undecidable_condition_handles_nothing() -> None:
    edges = [edge("bad", "join", "all_complete", when='variables.state == "broken"')]
    run = Simulation(sketch([node("bad"), node("join")], edges), failing("bad"))
    run.add("variable.changed", {"name": "state", "next": "broken"})
    run.take_steps()
    run.settle("bad")
    run.take_steps()

    run.add("variable.changed", {"name": "state"})
    run.run()

    assert run.state.status == "failed"


def test_a_condition_without_a_value_fails_the_node_it_leads_to() -> None:
    run = Simulation(sketch([node("a"), node("b")], [edge("a", "b", when="output.absent")]))

    run.run()

    assert run.about("node.started") == ["a"]
    assert run.about("node.failed") == ["b"]
    assert run.state.error is not None
    assert run.state.error.code == "expression_error"


# Retries and the clock


def test_a_node_is_retried_at_its_time_and_not_before() -> None:
    run = Simulation(sketch([node("a", settings=RETRIED_AFTER_50_MS)]), lambda *_: failure("busy"))
    run.take_steps()
    run.settle("a")

    assert plan(run.state, EPOCH + 49, run.limits) == Plan((), EPOCH + 50)
    assert plan(run.state, EPOCH + 50, run.limits).steps == (Start("a", 1),)


def test_the_last_attempt_fails_permanently() -> None:
    run = Simulation(sketch([node("a", settings=RETRIED_AFTER_50_MS)]), lambda *_: failure("busy"))

    run.run()

    assert [e.payload["attempt"] for e in run.log if e.type == "node.started"] == [0, 1]
    assert run.log[-2].payload["attempts"] == 2
    assert run.now == EPOCH + 50


def test_the_wake_up_is_the_earliest_of_deadline_and_retries() -> None:
    later = {"maxRetries": 1, "backoff": {"initialMs": 80}}
    nodes = [node("a", settings=later), node("b", settings=RETRIED_AFTER_50_MS), node("c")]
    run = Simulation(sketch(nodes, timeout=1000), lambda *_: failure("busy"))
    run.take_steps()
    assert run.plan().wake_at == EPOCH + 1001

    run.settle("a")
    assert run.plan().wake_at == EPOCH + 80

    run.settle("b")
    assert run.plan().wake_at == EPOCH + 50


def test_a_paused_run_starts_nothing_and_still_has_its_deadline() -> None:
    run = Simulation(sketch([node("a")], timeout=1000))
    run.add("run.paused", {})

    assert run.plan() == Plan((), EPOCH + 1001)
    assert isinstance(plan(run.state, EPOCH + 1001, run.limits).steps[0], Breach)

    run.add("run.resumed", {})
    assert run.plan().steps == (Start("a"),)
