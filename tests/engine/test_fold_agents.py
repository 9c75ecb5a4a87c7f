from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulation import Simulation, edge, node, sketch
from wopr.engine.fold.agents import CHANGES
from wopr.engine.snapshot import snapshot
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, Json, JsonObject

ALICE = {"agentId": "host:alice", "name": "Alice"}
DECIDED = {"agentId": "host:alice", "decision": "go", "confidence": 0.4}


def running(*nodes: JsonObject, **more: Json) -> Simulation:
    """Return a run whose nodes have started."""
    run = Simulation(sketch(nodes or [node("work", agent=ALICE)], **more))
    run.take_steps()
    return run


def test_a_pinned_node_sets_the_agent_of_the_run() -> None:
    run = running()

    assert run.state.agent == AgentRef(agent_id="host:alice", name="Alice")
    assert snapshot(run.state).agent == run.state.agent


def test_the_agent_is_kept_when_the_run_has_ended() -> None:
    run = running()
    run.run()

    assert run.state.is_terminal
    assert snapshot(run.state).agent == AgentRef(agent_id="host:alice", name="Alice")


def test_a_hand_off_changes_the_agent_and_is_stored_with_its_node() -> None:
    run = running()
    run.add("agent.handoff", {"fromAgentId": "host:alice", "toAgentId": "host:bob"}, "work")

    assert run.state.agent == AgentRef(agent_id="host:bob")
    assert run.state.nodes["work"].handed_to == "host:bob"


def test_the_supervisor_becomes_the_orchestrator_once_and_permanently() -> None:
    bosses = [
        node(name, "core.orchestrator.supervisor", agent={"agentId": f"host:{name}"})
        for name in ("first", "second")
    ]
    run = running(*bosses)

    assert run.state.run_orchestrator == AgentRef(agent_id="host:first")
    assert run.state.agent is None


@pytest.mark.parametrize(
    ("config", "name"),
    [({}, "host:orchestrator"), ({"agentId": "host:by-config"}, "host:by-config")],
)
def test_a_supervisor_without_a_pin_has_a_name(config: Json, name: str) -> None:
    run = running(node("boss", "core.orchestrator.supervisor", config=config))

    assert run.state.run_orchestrator == AgentRef(agent_id=name)


def test_decisions_are_counted_by_their_events() -> None:
    run = running()
    for kind in ("next-worker", "terminate"):
        decided = {"agentId": "host:x", "decision": {"kind": kind}}
        run.add("runOrchestrator.decided", decided, "work")

    assert [d.decision["kind"] for d in run.state.decisions] == ["next-worker", "terminate"]
    assert [d.event_id for d in run.state.decisions] == [e.event_id for e in run.log[-2:]]


def test_an_agent_s_decision_and_confidence_are_kept_until_its_node_starts_again() -> None:
    run = running()
    run.add("agent.decided", DECIDED, "work")
    run.add("agent.decided", {"agentId": "host:alice", "decision": "sure"}, "work")

    assert run.state.nodes["work"].agent_decisions == (DECIDED,)
    run.add("node.started", {"nodeId": "work", "attempt": 1}, "work")
    assert not run.state.nodes["work"].agent_decisions


def test_a_tool_call_is_open_until_it_returns() -> None:
    run = running()
    for call_id in ("a", "b"):
        run.add("agent.toolCalled", {"callId": call_id}, "work")
    run.add("agent.toolReturned", {"callId": "a"}, "work")

    assert run.state.nodes["work"].open_calls == {"b": run.log[-2].event_id}


def test_each_child_stays_known_when_its_node_starts_again() -> None:
    run = running(node("loop", "core.loop", config={"times": 9}), node("body"))
    for number in (1, 2):
        dispatched = {"childRunId": f"child-{number}", "childWorkflowId": "w"}
        run.add("node.dispatched", dispatched, "body")
        run.add("node.started", {"nodeId": "body", "attempt": 0}, "body")

    assert run.state.children == (("child-1", "body"), ("child-2", "body"))
    assert run.state.nodes["body"].children == ()


def test_visits_count_fresh_starts_over_all_rounds_and_no_retries() -> None:
    body = node("body", settings={"maxRetries": 1})
    head = node("head", "core.loop", config={"times": 2})
    inner = node("inner", "core.loop", config={"times": 2})
    run = Simulation(
        sketch(
            [head, inner, body],
            [
                edge("head", "inner", when="!nodes.head.done"),
                edge("inner", "body", when="!nodes.inner.done"),
                edge("body", "inner"),
                edge("inner", "head", when="nodes.inner.done"),
            ],
        )
    )
    run.run()

    assert run.state.status == "completed"
    assert run.about("node.started").count("body") == 4
    assert run.state.nodes["body"].visit == 3
    assert run.state.nodes["inner"].visit == run.about("node.started").count("inner") - 1


def test_a_retry_belongs_to_the_same_visit() -> None:
    run = running()
    run.add("node.retried", {"attempt": 1, "delayMs": 0}, "work")
    run.add("node.started", {"nodeId": "work", "attempt": 1}, "work")

    assert run.state.nodes["work"].visit == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
MEMBERS = "agentId decision confidence callId toAgentId fromAgentId phase childRunId".split()
odd_payloads = st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=6) | json_values
odd_events = st.lists(
    st.tuples(
        st.sampled_from([*sorted(CHANGES), "node.started", "node.dispatched"]),
        odd_payloads,
        st.sampled_from(["work", "nobody", ""]),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(odd_events)
def test_no_agent_event_makes_fold_fail(
    events: list[tuple[str, Json, str]],
) -> None:
    run = running()
    for event_type, payload, node_id in events:
        run.add(event_type, payload, node_id)

    assert snapshot(run.refold(len(run.log))) == snapshot(run.state)
    assert snapshot(run.state).run_orchestrator is UNSET
