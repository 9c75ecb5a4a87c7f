from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulation import EPOCH, Simulation, edge, node, sketch
from wopr.engine.fold.interrupts import CHANGES
from wopr.engine.interrupts import Interrupt
from wopr.engine.plan import Expire, LoopbackLimit, Start
from wopr.engine.snapshot import snapshot
from wopr.protocol.documents import Json, JsonObject

FEEDBACK = {"scope": "whole", "text": "shorter"}
APPROVAL = {"artifactId": "a", "artifactType": "draft", "title": "Fine?", "actions": ["accept"]}
garbage = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MEMBERS = """
    nodeId interruptId kind key data resumeSchema timeoutMs reason principal gateId resumeValue
    resolvedBy action refineFeedback conversationId turnIndex initialTurn finalTurn turn
    x-host-wopr-held-outputs x-host-wopr-waiting-status x-host-wopr-governance
""".split()
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["approval", "refine", "waiting-external", "clarification"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
odd_payloads = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=6) | values
wait_events = st.lists(
    st.tuples(
        st.sampled_from([*sorted(CHANGES), "node.started", "node.completed", "node.failed"]),
        odd_payloads,
        st.sampled_from(["work", "gate", "nobody", ""]),
    ),
    max_size=14,
)


def gated(**settings: Any) -> Simulation:
    """Return a run of two nodes whose second waits."""
    return Simulation(sketch([node("work"), node("gate")], [edge("work", "gate")], **settings))


def waiting(kind: str = "approval", data: JsonObject | None = None, **more: Json) -> Simulation:
    """Return a run whose gate is suspended."""
    run = gated()
    run.take_steps()
    run.settle("work")
    run.take_steps()
    suspend(run, kind, data, **more)
    return run


def suspend(
    run: Simulation, kind: str = "approval", data: JsonObject | None = None, **more: Json
) -> None:
    visit = run.state.nodes["gate"].visit
    key = f"gate:{visit}"
    about = {"nodeId": "gate", "interruptId": f"int-{key}", "kind": kind, "key": key}
    run.add("node.suspended", about, "gate")
    request = {"kind": kind, "key": key, "data": data or APPROVAL} | more
    run.add("interrupt.requested", request, "gate")


def pending(run: Simulation) -> Interrupt:
    interrupt = run.state.nodes["gate"].interrupt
    assert interrupt is not None
    return interrupt


def vote(run: Simulation, principal: str, event_type: str = "approval.granted") -> None:
    run.add(event_type, {"gateId": "gate", "principal": principal}, "gate")


def refine(run: Simulation) -> None:
    run.add("interrupt.resolved", {"nodeId": "gate", "resumeValue": {"action": "refine"}}, "gate")
    received = {"nodeId": "gate", "action": "refine", "refineFeedback": FEEDBACK}
    run.add("approval.received", received, "gate")


# Any log


@garbage
@given(wait_events)
def test_no_wait_event_makes_fold_plan_or_snapshot_fail(
    events: list[tuple[str, Json, str]],
) -> None:
    run = gated()

    for event_type, payload, node_id in events:
        run.add(event_type, payload, node_id)
        run.plan()
        snapshot(run.state)

    assert run.state.next_sequence == len(events) + 1


@garbage
@given(wait_events)
def test_a_run_waits_exactly_while_one_of_its_nodes_is_suspended(
    events: list[tuple[str, Json, str]],
) -> None:
    run = gated()

    for event_type, payload, node_id in events:
        run.add(event_type, payload, node_id)
        waits = [n.interrupt for n in run.state.nodes.values() if n.status == "suspended"]
        assert all(waits)
        assert run.state.status == next((w.status for w in waits if w), "running")


@garbage
@given(wait_events)
def test_no_voter_ever_has_two_votes(events: list[tuple[str, Json, str]]) -> None:
    run = waiting()

    for event_type, payload, node_id in events:
        run.add(event_type, payload, node_id)
        for found in run.state.nodes.values():
            ballots = () if found.interrupt is None else found.interrupt.ballots
            assert len({ballot.voter for ballot in ballots}) == len(ballots)


# A wait


def test_a_wait_is_defined_by_its_two_events() -> None:
    schema = {"type": "object"}

    run = waiting("external-event", {"eventType": "e"}, resumeSchema=schema, timeoutMs=500)

    interrupt = pending(run)
    assert (interrupt.interrupt_id, interrupt.key) == ("int-gate:0", "gate:0")
    assert interrupt.data == {"eventType": "e"}
    assert interrupt.resume_schema == schema
    assert interrupt.deadline == EPOCH + 500
    assert run.state.status == "waiting-external"
    assert snapshot(run.state).current_node_id == "gate"


def test_the_deadline_counts_from_the_request_and_not_from_its_suspension() -> None:
    run = gated()
    run.take_steps()
    run.settle("work")
    run.take_steps()
    about = {"nodeId": "gate", "interruptId": "i", "kind": "approval", "key": "gate:0"}
    run.add("node.suspended", about, "gate")
    run.now += 1000

    run.add("interrupt.requested", {"data": APPROVAL, "timeoutMs": 50}, "gate")

    assert pending(run).deadline == EPOCH + 1050
    assert run.plan().wake_at == EPOCH + 1050


@pytest.mark.parametrize("late", [0, 1, 86_400_000])
def test_a_wait_ends_at_its_deadline_and_never_before(late: int) -> None:
    run = waiting(timeoutMs=1000)

    run.now = EPOCH + 999
    early = run.plan().steps
    run.now = EPOCH + 1000 + late

    assert early == ()
    assert run.plan().steps == (Expire("gate"),)


def test_a_wait_without_a_timeout_has_no_deadline() -> None:
    assert pending(waiting()).deadline is None
    assert pending(waiting(timeoutMs=0)).deadline is None


def test_a_custom_kind_of_the_host_has_the_status_that_it_names() -> None:
    run = waiting()
    named = {"kind": "custom", "key": "k", "x-host-wopr-waiting-status": "waiting-external"}

    run.add("node.suspended", named, "gate")

    assert run.state.status == "waiting-external"


def test_a_status_that_is_not_a_waiting_one_is_ignored() -> None:
    run = waiting()

    run.add("node.suspended", {"kind": "custom", "x-host-wopr-waiting-status": "completed"}, "gate")

    assert run.state.status == "waiting-input"


# Its end


def test_an_answer_is_stored_under_its_key_with_its_author() -> None:
    run = waiting()
    run.now += 5

    resolved = {"nodeId": "gate", "resumeValue": {"action": "accept"}, "resolvedBy": "ann"}
    run.add("interrupt.resolved", resolved, "gate")
    run.add("node.resumed", {"nodeId": "gate"}, "gate")

    gate = run.state.nodes["gate"]
    assert run.state.answers == {"gate:0": {"action": "accept"}}
    assert gate.resolution is not None
    assert (gate.resolution.resolved_by, gate.resolution.kind) == ("ann", "approval")
    assert (gate.status, gate.interrupt, gate.resumed_at) == ("running", None, EPOCH + 5)
    assert run.state.status == "running"


def test_a_run_continues_to_wait_while_another_node_does() -> None:
    run = Simulation(sketch([node("one"), node("two")]))
    run.take_steps()
    for name, kind in (("one", "approval"), ("two", "clarification")):
        run.add("node.suspended", {"kind": kind, "key": name, "interruptId": name}, name)

    run.add("node.resumed", {"nodeId": "one"}, "one")

    assert run.state.status == "waiting-input"


def test_a_paused_run_stays_paused_when_one_of_its_waits_is_answered() -> None:
    run = waiting()
    run.add("run.paused", {})

    run.add("node.resumed", {"nodeId": "gate"}, "gate")

    assert run.state.status == "paused"


def test_a_resumed_run_waits_again_where_it_waited_before() -> None:
    run = waiting("clarification", {"questions": []})
    run.add("run.paused", {})

    run.add("run.resumed", {})

    assert run.state.status == "waiting-input"


# Refinement


def test_a_refinement_clears_the_votes_and_repeats_the_work() -> None:
    run = waiting(data=APPROVAL | {"requiredApprovals": 3})
    vote(run, "ann")
    vote(run, "ben")

    refine(run)
    run.take_steps()
    feedback = run.state.nodes["work"].feedback
    run.settle("work")
    run.take_steps()
    suspend(run)

    assert feedback == FEEDBACK
    assert pending(run).ballots == ()
    assert pending(run).key == "gate:1"
    assert run.about("node.started") == ["work", "gate", "work", "gate"]


def test_feedback_is_for_the_next_round_only() -> None:
    run = waiting()
    refine(run)
    run.take_steps()

    run.settle("work")

    assert run.state.nodes["work"].feedback is None


def test_a_gate_without_a_source_asks_again_directly() -> None:
    run = Simulation(sketch([node("gate")]))
    run.take_steps()
    suspend(run)

    refine(run)

    assert run.plan().steps == (Start("gate"),)


def test_a_source_still_in_progress_is_not_started_twice() -> None:
    nodes = [node("work"), node("slow"), node("gate")]
    edges = [edge("work", "gate", "any_success"), edge("slow", "gate", "any_success")]
    run = Simulation(sketch(nodes, edges))
    run.take_steps()
    run.settle("work")
    run.take_steps()
    suspend(run)

    refine(run)

    assert run.nodes("pending") == ["work", "gate"]
    assert run.nodes("running") == ["slow"]


def test_more_refinements_than_loops_are_allowed_end_the_run() -> None:
    run = gated(maxLoopbackIterations=2)
    for _ in range(3):
        run.take_steps()
        run.settle("work")
        run.take_steps()
        suspend(run)
        refine(run)

    [step] = run.plan().steps

    assert isinstance(step, LoopbackLimit)
    assert (step.node_id, step.iterations, step.limit) == ("gate", 3, 2)
    assert step.error.code == "loop_limit_exceeded"


def test_each_round_of_a_loop_asks_again() -> None:
    nodes = [node("head", "core.loop", config={"times": 2}), node("gate"), node("after")]
    edges = [
        edge("head", "gate", when="!output.done"),
        edge("gate", "head"),
        edge("head", "after", when="output.done"),
    ]
    run = Simulation(sketch(nodes, edges), inline=["head", "after"])
    keys = []
    for _ in range(2):
        run.take_steps()
        suspend(run)
        keys.append(pending(run).key)
        run.add("interrupt.resolved", {"nodeId": "gate", "resumeValue": {}}, "gate")
        run.add("node.resumed", {"nodeId": "gate"}, "gate")
        run.settle("gate")

    run.take_steps()

    assert keys == ["gate:0", "gate:1"]
    assert run.state.status == "completed"


# Conversations


def test_the_last_turn_and_its_event_are_stored() -> None:
    run = waiting("conversation.exchange", {"conversationId": "c", "prompt": "So?"})

    run.add("conversation.opened", {"conversationId": "c"}, "gate")
    opened = pending(run)
    run.add("conversation.exchanged", {"conversationId": "c", "turnIndex": 1}, "gate")

    assert (opened.turn_index, pending(run).turn_index) == (0, 1)
    assert opened.turn_event != pending(run).turn_event == run.log[-1].event_id
