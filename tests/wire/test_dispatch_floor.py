from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    DONE,
    ESCALATED,
    answer,
    children,
    decision_kinds,
    events_of,
    next_worker,
    only_event,
    supervised,
)
from tests.support.client import Wire
from tests.wire.escalations import OTHER, UNSURE, escalated
from wopr.protocol.documents import JsonObject

# Conditions


@pytest.mark.parametrize(
    ("confidence", "goes"), [(0.49, False), (0.5, True), (0.51, True), (0, False), (None, True)]
)
def test_a_decision_needs_half_the_confidence_and_equality_or_none_passes(
    acme: Wire, confidence: float | None, goes: bool
) -> None:
    fields = {} if confidence is None else {"confidence": confidence}
    decision = next_worker("conformance-noop", **fields)
    run_id = acme.create(acme.register(supervised(decision, DONE)))
    acme.events_until(run_id, "run.completed", "interrupt.requested")

    assert (ESCALATED not in acme.types(run_id)) is goes


def test_the_floor_is_not_the_agent_s_threshold(acme: Wire) -> None:
    decision = next_worker("conformance-noop", confidence=0.6)
    plan = supervised(decision, DONE)
    options = {"escalationThreshold": 0.9}

    assert acme.run(acme.register(plan), configurable=options)["status"] == "completed"


def test_a_question_to_the_user_is_never_escalated(acme: Wire) -> None:
    ask: JsonObject = {"kind": "ask-user", "prompt": "Sure?"}
    run_id = acme.create(acme.register(supervised(ask, DONE)))
    acme.events_until(run_id, "conversation.opened")

    assert ESCALATED not in acme.types(run_id)


# Order of events


def test_an_unsure_decision_is_recorded_then_escalated_then_asked_about(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    log = acme.log(run_id)

    assert [event["type"] for event in log] == [
        "run.started",
        "node.started",
        "runOrchestrator.decided",
        "node.completed",
        "node.started",
        ESCALATED,
        "node.suspended",
        "interrupt.requested",
        "approval.requested",
    ]
    found = acme.snapshot(run_id)
    assert found["status"] == "waiting-approval"
    assert found["currentNodeId"] == "dispatch"
    assert "childRuns" not in found


def test_the_escalation_contains_the_decision_and_is_caused_by_it(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    log = acme.log(run_id)
    event = only_event(log, ESCALATED)

    assert event["nodeId"] == "dispatch"
    assert event["causationId"] == only_event(log, "runOrchestrator.decided")["eventId"]
    assert event["payload"] == {
        "confidence": 0.3,
        "floor": 0.5,
        "escalationKind": "escalate",
        "parentRunId": run_id,
        "workerId": "conformance-noop",
        "originalDecision": UNSURE,
    }


def test_an_unsure_end_is_escalated_without_a_worker(acme: Wire) -> None:
    run_id = escalated(acme, DONE | {"confidence": 0.2})

    payload = only_event(acme.log(run_id), ESCALATED)["payload"]

    assert "workerId" not in payload
    assert payload["originalDecision"] == DONE | {"confidence": 0.2}
    answer(acme, run_id, "dispatch", {"action": "accept"})
    assert acme.finished(run_id)["status"] == "completed"


def test_the_first_of_several_workers_is_named(acme: Wire) -> None:
    two = next_worker("conformance-noop", OTHER, confidence=0.1)
    run_id = escalated(acme, two, DONE)

    assert only_event(acme.log(run_id), ESCALATED)["payload"]["workerId"] == "conformance-noop"


def test_the_approval_shows_the_decision_and_three_actions(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    request = only_event(acme.log(run_id), "interrupt.requested")["payload"]

    assert request["kind"] == "approval"
    assert request["data"]["artifactType"] == "orchestrator-decision"
    assert request["data"]["artifactId"].startswith("decision:")
    assert request["data"]["artifactData"] == UNSURE
    assert request["data"]["actions"] == ["accept", "reject", "edit-accept"]


def test_the_inbox_describes_the_effect_of_each_action(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)

    (item,) = acme.document("/v1/interrupts", params={"runId": run_id})["items"]

    assert item["answers"].keys() == {"accept", "reject", "edit-accept"}
    assert "another turn" in item["answers"]["reject"]


# Answers


def test_an_accepted_decision_is_carried_out_without_a_second_question(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    answer(acme, run_id, "dispatch", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert decision_kinds(log) == ["next-worker", "terminate"]
    assert len(events_of(log, ESCALATED)) == len(events_of(log, "interrupt.requested")) == 1
    assert len(children(log)) == 1
    assert only_event(log, "interrupt.resolved")["payload"]["resumeValue"]["action"] == "accept"


def test_the_causal_chain_of_an_accepted_decision_starts_at_the_decision(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    answer(acme, run_id, "dispatch", {"action": "accept"})
    acme.finished(run_id)

    log = acme.log(run_id)

    decided = events_of(log, "runOrchestrator.decided")[0]["eventId"]
    assert events_of(log, CHAIN)[0]["causationId"] == decided


def test_an_edited_decision_replaces_the_first(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    edited = next_worker(OTHER)
    answer(acme, run_id, "dispatch", {"action": "edit-accept", "editedArtifactData": edited})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    dispatched = only_event(log, "node.dispatched")["payload"]
    assert dispatched["childWorkflowId"] == OTHER
    resolved = only_event(log, "interrupt.resolved")["payload"]["resumeValue"]
    assert resolved["editedArtifactData"] == edited


def test_an_edit_can_end_the_run(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, UNSURE)
    answer(acme, run_id, "dispatch", {"action": "edit-accept", "editedArtifactData": DONE})

    assert acme.finished(run_id)["status"] == "completed"
    assert decision_kinds(acme.log(run_id)) == ["next-worker"]


def test_an_invalid_edited_decision_is_refused_and_the_run_still_waits(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, DONE)
    body = {"resumeValue": {"action": "edit-accept", "editedArtifactData": {"kind": "dance"}}}

    response = acme.post(f"/v1/runs/{run_id}/interrupts/dispatch", body)

    assert response.status_code == 400
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_decision_returns_to_the_supervisor(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, next_worker(OTHER), DONE)
    answer(acme, run_id, "dispatch", {"action": "reject"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert decision_kinds(log) == ["next-worker", "next-worker", "terminate"]
    (dispatched,) = events_of(log, "node.dispatched")
    assert dispatched["payload"]["childWorkflowId"] == OTHER


def test_a_rejected_end_gives_the_supervisor_another_turn(acme: Wire) -> None:
    run_id = escalated(acme, DONE | {"confidence": 0.1}, next_worker("conformance-noop"), DONE)
    answer(acme, run_id, "dispatch", {"action": "reject"})

    assert acme.finished(run_id)["status"] == "completed"
    log = acme.log(run_id)
    assert decision_kinds(log) == ["terminate", "next-worker", "terminate"]
    assert len(children(log)) == 1


def test_every_unsure_decision_of_a_run_is_asked_about(acme: Wire) -> None:
    run_id = escalated(acme, UNSURE, UNSURE, DONE | {"confidence": 0.1})
    for number in (1, 2, 3):
        log = acme.events_until(run_id, "interrupt.requested", times=number)
        assert len(events_of(log, ESCALATED)) == number
        assert len(children(log)) == number - 1
        answer(acme, run_id, "dispatch", {"action": "accept"})

    assert acme.finished(run_id)["status"] == "completed"
