from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.wire.agent_definitions import (
    agent_name,
    agents_of,
    answer,
    every,
    mock,
    next_worker,
    only,
    scripted,
    supervised,
    waiting,
)
from tests.wire.client import Wire
from tests.wire.definitions import edge, node
from tests.wire.host import ACME, ServedHost
from tests.wire.recorder import Recorder
from tests.wire.waiting import name_of
from wopr.protocol.documents import Json, JsonObject

CAUTIOUS = "core.conformance.agents.cautious"
SUPPRESSED = "confidence-escalation-suppressed"
UNSURE: JsonObject = {"decision": {"kind": "stub"}, "confidence": 0.5}


def deciding(decision: JsonObject, agent_id: str | None = None, **fields: Json) -> JsonObject:
    """A workflow whose only node decides."""
    agent = None if agent_id is None else {"agentId": agent_id}
    return scripted([mock("decider", agent, mockDecision=decision)], **fields)


def held(wire: Wire, definition: JsonObject, **body: Json) -> str:
    """The run of a decision that waits for a person."""
    return waiting(wire, wire.register(definition), **body)


def passes(
    wire: Wire, confidence: float, agent_id: str | None = None, **configurable: Json
) -> bool:
    """Whether a decision of this confidence goes ahead."""
    decision = {"decision": "go", "confidence": confidence}
    workflow_id = wire.register(deciding(decision, agent_id))
    run_id = wire.create(workflow_id, configurable=configurable)
    wire.events_until(run_id, "run.completed", "interrupt.requested")
    return str(wire.snapshot(run_id)["status"]) == "completed"


# Which threshold


@pytest.mark.parametrize(("confidence", "goes"), [(0.69, False), (0.7, True), (0.71, True)])
def test_the_threshold_is_seven_tenths_and_equality_passes(
    acme: Wire, confidence: float, goes: bool
) -> None:
    assert passes(acme, confidence) is goes


@pytest.mark.parametrize(("confidence", "goes"), [(0.89, False), (0.9, True)])
def test_the_agent_s_manifest_overrides_the_default(
    acme: Wire, confidence: float, goes: bool
) -> None:
    assert passes(acme, confidence, CAUTIOUS) is goes


@pytest.mark.parametrize(
    ("threshold", "confidence", "goes"),
    [(0.3, 0.3, True), (0.3, 0.29, False), (1, 0.99, False), (1, 1, True), (0, 0, True)],
)
def test_the_run_s_option_overrides_the_manifest(
    acme: Wire, threshold: float, confidence: float, goes: bool
) -> None:
    for agent_id in (None, CAUTIOUS):
        assert passes(acme, confidence, agent_id, escalationThreshold=threshold) is goes


def test_a_manifest_lowers_the_threshold_as_well(acme: Wire) -> None:
    agent_id = f"local.acme.a{agent_name()[-12:]}"
    manifest = {
        "agentId": agent_id,
        "persona": "Bold",
        "modelClass": "general",
        "systemPrompt": "Dare.",
        "confidence": {"defaultThreshold": 0.1},
    }
    assert acme.post("/v1/agents", manifest).status_code == 201

    assert passes(acme, 0.1, agent_id)
    assert not passes(acme, 0.09, agent_id)


def test_a_pinned_version_brings_the_threshold_of_that_version(acme: Wire) -> None:
    agent_id = f"local.acme.b{agent_name()[-12:]}"
    for version, threshold in (("1", 0.2), ("2", 0.9)):
        manifest = {
            "agentId": agent_id,
            "persona": "Bold",
            "modelClass": "general",
            "systemPrompt": "Dare.",
            "version": version,
            "confidence": {"defaultThreshold": threshold},
        }
        assert acme.post("/v1/agents", manifest).status_code == 201
    pin = {"agentId": agent_id, "version": "1"}
    old = scripted([mock("decider", pin, mockDecision=UNSURE)])

    assert acme.run(acme.register(old))["status"] == "completed"
    assert not passes(acme, 0.5, agent_id)


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True])
def test_an_impossible_threshold_is_refused_when_the_run_is_created(
    acme: Wire, value: Json
) -> None:
    body = {
        "workflowId": acme.register(deciding(UNSURE)),
        "configurable": {"escalationThreshold": value},
    }
    response = acme.post("/v1/runs", body)

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == "configurable.escalationThreshold"


# When nothing is said


def test_a_decision_without_a_confidence_is_no_signal(acme: Wire) -> None:
    found = acme.run(acme.register(deciding({"decision": "go"})))

    assert found["status"] == "completed"


def test_a_lone_confidence_makes_a_decision_of_its_own(acme: Wire) -> None:
    run_id = held(acme, scripted([mock("decider", mockConfidence=0.2)]))

    decided = only(acme.log(run_id), "agent.decided")["payload"]

    assert decided["decision"] == {"kind": "mock-decision"}
    assert decided["confidence"] == 0.2


def test_a_decision_s_own_confidence_wins_over_the_shorthand(acme: Wire) -> None:
    sure = {"decision": "go", "confidence": 1}
    run_id = acme.create(
        acme.register(scripted([mock("decider", mockDecision=sure, mockConfidence=0.1)]))
    )

    assert acme.finished(run_id)["status"] == "completed"
    assert only(acme.log(run_id), "agent.decided")["payload"]["confidence"] == 1


def test_the_shorthand_fills_in_a_confidence_that_is_missing(acme: Wire) -> None:
    script = mock("decider", mockDecision={"decision": "go"}, mockConfidence=0.1)
    run_id = held(acme, scripted([script]))

    assert only(acme.log(run_id), "agent.decided")["payload"] == {
        "agentId": "host:mock-agent:decider",
        "decision": "go",
        "confidence": 0.1,
    }


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


# A supervisor

HELD = supervised(
    supervisor={"mockConfidence": 0.5, "mockPendingDecision": next_worker("conformance-noop")},
    agent={"agentId": "core.conformance.unsure"},
    id="conformance-agents-held-supervisor",
)


def test_a_supervisor_that_is_not_sure_decides_nothing_before_it_is_ratified(acme: Wire) -> None:
    run_id = held(acme, HELD)

    log = acme.log(run_id)

    assert [event["type"] for event in log[2:]] == [
        "agent.decided",
        "node.suspended",
        "interrupt.requested",
    ]
    assert log[3]["payload"]["agentId"] == "core.conformance.unsure"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_ratified_supervisor_decides_once_and_goes_on(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert [event["type"] for event in log[5:9]] == [
        "interrupt.resolved",
        "node.resumed",
        "runOrchestrator.decided",
        "node.completed",
    ]
    assert log[7]["payload"]["decision"] == next_worker("conformance-noop")
    assert len(every(log, "agent.decided")) == 1


def test_a_person_may_decide_in_the_supervisor_s_place(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"decision": {"kind": "terminate", "reason": "enough"}})

    assert acme.finished(run_id)["status"] == "completed"
    decided = only(acme.log(run_id), "runOrchestrator.decided")["payload"]["decision"]
    assert decided == {"kind": "terminate", "reason": "enough"}


def test_what_is_no_decision_is_refused_and_the_supervisor_waits_on(acme: Wire) -> None:
    run_id = held(acme, HELD)

    response = acme.post(
        f"/v1/runs/{run_id}/interrupts/supervisor",
        {"resumeValue": {"decision": {"kind": "dance"}}},
    )

    assert response.status_code == 400
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_supervisor_fails_and_no_worker_was_started(acme: Wire) -> None:
    run_id = held(acme, HELD)
    answer(acme, run_id, "supervisor", {"action": "reject"})

    found = acme.finished(run_id)

    assert found["error"]["code"] == "decision_rejected"
    assert not {"runOrchestrator.decided", "node.dispatched"} & set(acme.types(run_id))


# Switched off by the operator


class Lenient(Recorder):
    """Knows the one event that leaves the published enum: it exists only with the switch."""

    def event(self, event: JsonObject) -> None:
        if event["type"] == "cap.breached" and event["payload"]["kind"] == SUPPRESSED:
            event = event | {"payload": event["payload"] | {"kind": "loop-iterations"}}
        super().event(event)


@pytest.fixture
def bold(new_host: Callable[..., ServedHost]) -> Iterator[Wire]:
    host = new_host("--conformance", WOPR_SUPPRESS_ESCALATION="1")
    with Wire(host.url, ACME, Lenient()) as wire:
        yield wire


def test_an_operator_can_let_unsure_decisions_pass_on_the_record(bold: Wire, acme: Wire) -> None:
    run_id = bold.create(bold.register(deciding(UNSURE)))

    assert bold.finished(run_id)["status"] == "completed"
    log = bold.log(run_id)
    assert [event["type"] for event in log[2:5]] == [
        "agent.decided",
        "cap.breached",
        "node.completed",
    ]
    assert log[3]["payload"] == {
        "kind": SUPPRESSED,
        "limit": 0.7,
        "observed": 0.5,
        "nodeId": "decider",
    }
    run_id = bold.create(bold.register(HELD))
    assert bold.finished(run_id)["status"] == "completed"
    breach = only(bold.log(run_id), "cap.breached")["payload"]
    assert (breach["kind"], breach["observed"]) == (SUPPRESSED, 0.5)
    sure = bold.create(bold.register(deciding({"decision": 1, "confidence": 0.7})))
    bold.finished(sure)
    assert "cap.breached" not in bold.types(sure)
    for wire, expected in ((bold, True), (acme, None)):
        agents = wire.document("/.well-known/openwop")["agents"]
        assert agents.get("confidenceEscalationSuppressed") is expected
