from __future__ import annotations

import pytest

from tests.support.agent_definitions import agent_name, mock, only_event, scripted
from tests.support.client import Wire
from tests.wire.unsure_agents import UNSURE, deciding, held
from wopr.protocol.documents import Json

CAUTIOUS = "core.conformance.agents.cautious"


def passes(
    wire: Wire, confidence: float, agent_id: str | None = None, **configurable: Json
) -> bool:
    """Return whether a decision of this confidence passes."""
    decision = {"decision": "go", "confidence": confidence}
    workflow_id = wire.register(deciding(decision, agent_id))
    run_id = wire.create(workflow_id, configurable=configurable)
    wire.events_until(run_id, "run.completed", "interrupt.requested")
    return str(wire.snapshot(run_id)["status"]) == "completed"


# Thresholds


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
def test_an_invalid_threshold_is_refused_when_the_run_is_created(acme: Wire, value: Json) -> None:
    body = {
        "workflowId": acme.register(deciding(UNSURE)),
        "configurable": {"escalationThreshold": value},
    }
    response = acme.post("/v1/runs", body)

    assert response.status_code == 400
    assert response.json()["error"] == "validation_error"
    assert response.json()["details"]["field"] == "configurable.escalationThreshold"


# Missing confidence


def test_a_decision_without_a_confidence_is_no_signal(acme: Wire) -> None:
    found = acme.run(acme.register(deciding({"decision": "go"})))

    assert found["status"] == "completed"


def test_a_confidence_without_a_decision_makes_a_mock_decision(acme: Wire) -> None:
    run_id = held(acme, scripted([mock("decider", mockConfidence=0.2)]))

    decided = only_event(acme.log(run_id), "agent.decided")["payload"]

    assert decided["decision"] == {"kind": "mock-decision"}
    assert decided["confidence"] == 0.2


def test_a_decision_s_own_confidence_wins_over_the_shorthand(acme: Wire) -> None:
    sure = {"decision": "go", "confidence": 1}
    run_id = acme.create(
        acme.register(scripted([mock("decider", mockDecision=sure, mockConfidence=0.1)]))
    )

    assert acme.finished(run_id)["status"] == "completed"
    assert only_event(acme.log(run_id), "agent.decided")["payload"]["confidence"] == 1


def test_the_shorthand_is_ignored_beside_a_decision_without_a_confidence(acme: Wire) -> None:
    script = mock("decider", mockDecision={"decision": "go"}, mockConfidence=0.1)
    run_id = acme.create(acme.register(scripted([script])))

    assert acme.finished(run_id)["status"] == "completed"
    assert only_event(acme.log(run_id), "agent.decided")["payload"] == {
        "agentId": "host:mock-agent:decider",
        "decision": "go",
    }
