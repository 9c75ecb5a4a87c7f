from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    agent_events,
    agent_name,
    answer,
    events_of,
    mock,
    only_event,
    scripted,
)
from tests.support.client import Wire
from tests.support.definitions import edge, node
from tests.support.host import ACME
from tests.support.interrupts import principal_of
from tests.wire.unsure_agents import UNSURE, deciding, held
from wopr.protocol.documents import Json

# The first round


def test_an_unsure_decision_only_suspends_its_node(acme: Wire) -> None:
    agent_id = agent_name()
    run_id = held(acme, deciding(UNSURE, agent_id))

    log = acme.log(run_id)

    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "agent.decided",
        "node.suspended",
        "interrupt.requested",
    ]
    suspended = log[3]["payload"]
    assert suspended["reason"] == suspended["kind"] == "low-confidence"
    assert suspended["nodeId"] == "decider"
    assert {"interruptId", "key"} <= suspended.keys()
    about = {
        "agentId": agent_id,
        "threshold": 0.7,
        "observed": 0.5,
        "decision": {"kind": "stub"},
    }
    assert about.items() <= suspended.items()
    assert log[4]["payload"]["kind"] == "low-confidence"
    assert log[4]["payload"]["data"] == about
    found = acme.snapshot(run_id)
    assert found["status"] == "waiting-approval"
    assert found["currentNodeId"] == "decider"


def test_nodes_that_depend_on_the_decision_wait_with_it(acme: Wire) -> None:
    definition = scripted([mock("decider", mockDecision=UNSURE), node("after")])
    run_id = held(acme, definition)

    states = acme.snapshot(run_id)["nodeStates"]

    assert states["after"]["status"] == "pending"
    assert "outputs" not in states["decider"]


def test_every_unsure_round_of_a_loop_has_one_wait(acme: Wire) -> None:
    back = {"type": "expression", "expression": "!nodes.loop.done"}
    nodes = [
        node("loop", "core.loop", config={"times": 2}),
        mock("decider", mockDecision=UNSURE),
    ]
    edges = [edge("loop", "decider", condition=back), edge("decider", "loop")]
    run_id = held(acme, scripted(nodes, edges=edges))

    answer(acme, run_id, "decider", {"action": "accept"})
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    answer(acme, run_id, "decider", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
    keys = [event["payload"]["key"] for event in events_of(acme.log(run_id), "node.suspended")]
    assert len(set(keys)) == 2


# Answers


@pytest.mark.parametrize("value", [{"action": "accept"}, {"ratified": True}])
def test_a_ratified_decision_is_recorded_without_a_confidence(acme: Wire, value: Json) -> None:
    agent_id = agent_name()
    run_id = held(acme, deciding(UNSURE, agent_id))
    answer(acme, run_id, "decider", value)

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert [event["type"] for event in log[5:]] == [
        "interrupt.resolved",
        "node.resumed",
        "agent.decided",
        "node.completed",
        "run.completed",
    ]
    assert log[7]["payload"] == {"agentId": agent_id, "decision": {"kind": "stub"}}
    resolved = log[5]["payload"]
    assert resolved["resumeValue"] == value
    assert resolved["resolvedBy"] == principal_of(ACME)


def test_a_ratified_node_completes_with_its_agent_and_its_outputs(acme: Wire) -> None:
    agent_id = agent_name()
    run_id = held(acme, deciding(UNSURE, agent_id))
    answer(acme, run_id, "decider", {"action": "accept"})
    acme.finished(run_id)

    completed = only_event(acme.log(run_id), "node.completed")["payload"]

    assert completed == {"nodeId": "decider", "outputs": {}, "agent": {"agentId": agent_id}}


@pytest.mark.parametrize(
    ("value", "decision"),
    [({"decision": {"kind": "other"}}, {"kind": "other"}), ({"kind": "own"}, {"kind": "own"})],
)
def test_a_replacement_decision_is_recorded_instead_of_the_agent_s(
    acme: Wire, value: Json, decision: Json
) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", value)

    assert acme.finished(run_id)["status"] == "completed"
    assert agent_events(acme.log(run_id))[-1]["payload"]["decision"] == decision


@pytest.mark.parametrize("value", [{"action": "reject"}, {"rejected": True}])
def test_a_rejected_decision_fails_its_node(acme: Wire, value: Json) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", value)

    found = acme.finished(run_id)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "decision_rejected"
    log = acme.log(run_id)
    assert only_event(log, "node.failed")["payload"]["error"]["code"] == "decision_rejected"
    assert len(events_of(log, "agent.decided")) == 1


def test_ratified_is_set_by_the_host_and_not_by_the_answer(acme: Wire) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", {"action": "accept", "resolvedBy": "the king"})

    resolved = only_event(acme.log(run_id), "interrupt.resolved")["payload"]

    assert resolved["resolvedBy"] == principal_of(ACME)
