from __future__ import annotations

from collections import Counter
from itertools import groupby

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.random_runs import carries, definitions, ended_runs, history
from tests.engine.trigger_table import expected
from tests.support.simulation import IDENTITY, REENTRANT, Simulation, node, sketch
from wopr.engine.fold.fold import fold, fold_all
from wopr.engine.graph import compile_graph, find_cycle
from wopr.engine.limits import HostLimits, max_retries
from wopr.engine.plan import FailNode, Skip, Start, plan
from wopr.engine.snapshot import snapshot
from wopr.engine.state import ENDED, RunState, initial_state
from wopr.engine.triggers import TOLERANT_RULES, Readiness
from wopr.protocol.documents import UNSET, Json
from wopr.protocol.events import EVENT_TYPES, RUN_TERMINAL_TYPES, RunEvent
from wopr.protocol.workflow import WorkflowDefinition

engine_settings = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

MEMBERS = """
    inputs outputs configurable tags metadata owner engineVersion traceparent error lastError code
    message details retryable attempt delayMs reason childRunId childWorkflowId name next channel
    value reducer nodeId changeId version inputTokens outputTokens costEstimateUsd provider model
    tenant _ts messageId userId
""".split()
REDUCERS = ["append", "merge", "counter", "votes", "feedback", "message", "replace", "vendor.a.b"]

numbers = st.integers() | st.just(10**400) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from(REDUCERS)
payloads = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), inner, max_size=8)
    ),
    max_leaves=20,
)
odd_objects = st.dictionaries(st.sampled_from(MEMBERS), payloads, max_size=8)
moments = st.sampled_from(["2026-01-01T00:00:00.000Z", "2026-01-01", "", "9999-99-99", "now"])


@st.composite
def odd_logs(draw: st.DrawFn) -> list[RunEvent]:
    """Generate a log that no host would write."""
    types = st.sampled_from(sorted(EVENT_TYPES)) | st.text(max_size=8)
    node_ids = st.just(UNSET) | st.sampled_from(["n0", "n1", "n2", "nobody"])
    return [
        RunEvent(
            event_id=f"e{sequence}",
            run_id=IDENTITY.run_id,
            type=draw(types),
            payload=draw(odd_objects | payloads),
            timestamp=draw(moments | st.text(max_size=8)),
            sequence=sequence,
            node_id=draw(node_ids),
        )
        for sequence in range(draw(st.integers(0, 12)))
    ]


def fresh(definition: WorkflowDefinition) -> RunState:
    return initial_state(IDENTITY, compile_graph(definition, REENTRANT))


def judged(run: Simulation, state: RunState, node_id: str) -> list[Readiness]:
    """Return the result of the trigger table for each group of a node's edges."""
    edges = sorted(run.graph.incoming[node_id], key=lambda found: found.trigger_rule)
    groups = groupby(edges, key=lambda found: found.trigger_rule)
    return [expected(rule, [carries(state, each) for each in group]) for rule, group in groups]


# Fold


@engine_settings
@given(definitions(with_loops=True), odd_logs())
def test_no_event_makes_fold_fail(definition: WorkflowDefinition, log: list[RunEvent]) -> None:
    state = fresh(definition)

    for event in log:
        state = fold(state, event)
        assert state.next_sequence == event.sequence + 1


@engine_settings
@given(st.sampled_from(sorted(EVENT_TYPES)), odd_objects | payloads, st.sampled_from(["n0", "x"]))
def test_every_event_type_folds_with_any_payload(
    event_type: str, payload: Json, node_id: str
) -> None:
    run = Simulation(sketch([node("n0")]))

    run.add(event_type, payload, node_id)

    assert run.state.next_sequence == 2


@engine_settings
@given(definitions(with_loops=True), odd_logs())
def test_folding_twice_gives_the_same_state(
    definition: WorkflowDefinition, log: list[RunEvent]
) -> None:
    empty = fresh(definition)

    assert fold_all(empty, log) == fold_all(empty, log)


@engine_settings
@given(definitions(with_loops=True), odd_logs(), st.integers(0, 10**13))
def test_every_folded_state_can_be_planned_and_shown(
    definition: WorkflowDefinition, log: list[RunEvent], now: int
) -> None:
    state = fold_all(fresh(definition), log)

    planned = plan(state, now, HostLimits())

    assert planned == plan(state, now, HostLimits())
    assert snapshot(state).last_sequence == len(log) - 1


@engine_settings
@given(ended_runs(with_loops=True))
def test_every_prefix_of_a_log_folds_to_the_state_at_that_point(run: Simulation) -> None:
    for length, (state, _) in enumerate(history(run)):
        refolded = run.refold(length)

        assert snapshot(refolded) == snapshot(state)
        assert refolded.nodes == state.nodes


# Plan


@engine_settings
@given(ended_runs(with_loops=True), st.integers(0, 100))
def test_a_worker_that_takes_over_makes_the_same_plan(run: Simulation, later: int) -> None:
    for length, (state, _) in enumerate(history(run)):
        now = state.updated_at + later

        assert plan(run.refold(length), now, run.limits) == plan(state, now, run.limits)


@engine_settings
@given(ended_runs(with_loops=True))
def test_every_run_ends_with_one_terminal_event(run: Simulation) -> None:
    endings = [event.type for event in run.log if event.type in RUN_TERMINAL_TYPES]

    assert endings == [run.log[-1].type]
    assert run.nodes("running", "retrying", "suspended") == []


@engine_settings
@given(ended_runs(with_loops=True))
def test_a_step_that_ends_the_run_is_planned_alone(run: Simulation) -> None:
    for state, _ in history(run):
        steps = plan(state, state.updated_at, run.limits).steps

        assert len(steps) <= 1 or all(isinstance(s, Start | Skip | FailNode) for s in steps)


@engine_settings
@given(ended_runs(with_loops=True))
def test_a_completed_run_leaves_no_node_unfinished(run: Simulation) -> None:
    behind = [name for name, found in run.state.nodes.items() if found.status not in ENDED]

    assert behind == [] or run.state.status == "failed"


@engine_settings
@given(ended_runs())
def test_a_node_starts_only_when_its_sources_allow_it(run: Simulation) -> None:
    for state, event in history(run):
        if event.type == "node.started":
            assert isinstance(event.node_id, str)
            assert set(judged(run, state, event.node_id)) <= {Readiness.READY}
            assert not run.graph.nodes[event.node_id].disabled


@engine_settings
@given(ended_runs())
def test_a_node_is_skipped_only_when_it_is_disabled_or_unreachable(run: Simulation) -> None:
    for state, event in history(run):
        if event.type == "node.skipped":
            assert isinstance(event.node_id, str)
            cut_off = Readiness.SKIP in judged(run, state, event.node_id)
            assert cut_off or run.graph.nodes[event.node_id].disabled


@engine_settings
@given(ended_runs())
def test_a_skip_propagates_downstream(run: Simulation) -> None:
    for name, edges in run.graph.incoming.items():
        sources = {run.state.nodes[found.source_node_id].status for found in edges}
        if sources == {"skipped"} and run.state.status == "completed":
            assert run.state.nodes[name].status == "skipped"


@engine_settings
@given(ended_runs())
def test_an_unhandled_failure_fails_the_run(run: Simulation) -> None:
    for name in run.nodes("failed"):
        if not any(found.trigger_rule in TOLERANT_RULES for found in run.graph.outgoing[name]):
            assert run.state.status == "failed"


@engine_settings
@given(ended_runs())
def test_in_a_completed_run_a_completed_node_handled_each_failure(
    run: Simulation,
) -> None:
    completed = set(run.nodes("completed"))

    for name in run.nodes("failed") if run.state.status == "completed" else ():
        listeners = {found.target_node_id for found in run.graph.outgoing[name]}
        assert listeners & completed


@engine_settings
@given(ended_runs(with_loops=True))
def test_no_run_executes_more_nodes_than_its_cap(run: Simulation) -> None:
    cap = run.state.configurable["recursionLimit"]
    breaches = [event.payload for event in run.log if event.type == "cap.breached"]

    assert len(run.about("node.started")) <= cap
    assert len(breaches) <= 1
    assert all(breach["observed"] > breach["limit"] for breach in breaches)


@engine_settings
@given(ended_runs())
def test_a_node_is_retried_at_most_as_often_as_allowed(run: Simulation) -> None:
    starts, retries = Counter(run.about("node.started")), Counter(run.about("node.retried"))

    for name, found in run.graph.nodes.items():
        assert retries[name] <= max_retries(run.state, found)
        assert starts[name] <= retries[name] + 1


# Graph


@engine_settings
@given(definitions(with_loops=True))
def test_every_edge_is_forward_or_closes_one_loop(definition: WorkflowDefinition) -> None:
    graph = compile_graph(definition, REENTRANT)
    forward = [found.id for edges in graph.incoming.values() for found in edges]
    back = [found.id for loop in graph.loops.values() for found in loop.back]

    assert sorted(forward + back) == sorted(found.id for found in definition.edges)
    assert all(loop.head in loop.members for loop in graph.loops.values())
    assert find_cycle(definition.nodes, definition.edges, REENTRANT) == []
