from __future__ import annotations

import pytest

from tests.wire.agent_definitions import agent_name, agents_of, answer, every, mock, only, scripted
from tests.wire.client import Wire
from tests.wire.deciding import UNSURE, deciding, held
from tests.wire.definitions import edge, node
from tests.wire.host import ACME
from tests.wire.waiting import name_of
from wopr.protocol.documents import Json

# Exactly one action


def test_an_unsure_decision_suspends_its_node_and_does_nothing_else(acme: Wire) -> None:
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


def test_what_depends_on_the_decision_waits_with_it(acme: Wire) -> None:
    definition = scripted([mock("decider", mockDecision=UNSURE), node("after")])
    run_id = held(acme, definition)

    states = acme.snapshot(run_id)["nodeStates"]

    assert states["after"]["status"] == "pending"
    assert "outputs" not in states["decider"]


def test_one_wait_comes_of_a_loop_s_every_unsure_round(acme: Wire) -> None:
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
    keys = [event["payload"]["key"] for event in every(acme.log(run_id), "node.suspended")]
    assert len(set(keys)) == 2


# The answer


@pytest.mark.parametrize("value", [{"action": "accept"}, {"ratified": True}])
def test_a_ratified_decision_stands_and_is_on_the_record_without_a_confidence(
    acme: Wire, value: Json
) -> None:
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
    assert resolved["resolvedBy"] == name_of(ACME)


def test_a_ratified_node_completes_with_its_agent_and_its_outputs(acme: Wire) -> None:
    agent_id = agent_name()
    run_id = held(acme, deciding(UNSURE, agent_id))
    answer(acme, run_id, "decider", {"action": "accept"})
    acme.finished(run_id)

    completed = only(acme.log(run_id), "node.completed")["payload"]

    assert completed == {"nodeId": "decider", "outputs": {}, "agent": {"agentId": agent_id}}


@pytest.mark.parametrize(
    ("value", "decision"),
    [({"decision": {"kind": "other"}}, {"kind": "other"}), ({"kind": "own"}, {"kind": "own"})],
)
def test_a_decision_given_instead_replaces_the_agent_s(
    acme: Wire, value: Json, decision: Json
) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", value)

    assert acme.finished(run_id)["status"] == "completed"
    assert agents_of(acme.log(run_id))[-1]["payload"]["decision"] == decision


@pytest.mark.parametrize("value", [{"action": "reject"}, {"rejected": True}])
def test_a_rejected_decision_fails_its_node(acme: Wire, value: Json) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", value)

    found = acme.finished(run_id)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "decision_rejected"
    log = acme.log(run_id)
    assert only(log, "node.failed")["payload"]["error"]["code"] == "decision_rejected"
    assert len(every(log, "agent.decided")) == 1


def test_who_ratified_is_what_the_host_knows_and_not_what_the_answer_says(acme: Wire) -> None:
    run_id = held(acme, deciding(UNSURE))
    answer(acme, run_id, "decider", {"action": "accept", "resolvedBy": "the king"})

    resolved = only(acme.log(run_id), "interrupt.resolved")["payload"]

    assert resolved["resolvedBy"] == name_of(ACME)
