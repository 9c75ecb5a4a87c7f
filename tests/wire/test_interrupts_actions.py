from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from tests.support.host import ACME
from tests.support.interrupts import (
    ACCEPT,
    ALL,
    EDIT,
    REFINE,
    REJECT,
    accepted,
    answer,
    events,
    gate,
    payload,
    principal_of,
    refused,
    waiting_run,
)
from wopr.protocol.documents import Json


def test_an_edit_passes_the_edited_version_on(acme: Wire) -> None:
    read = {"artifact": {"type": "variable", "variableName": "draft"}}
    shown = node("gate", "core.approvalGate", inputs=read, config={"title": "t", "actions": ALL})
    definition = workflow(
        [shown], variables=[{"name": "draft", "type": "object", "defaultValue": {"text": "old"}}]
    )
    run_id = acme.create(acme.register(definition))

    status = accepted(acme, run_id, "gate", EDIT)

    assert status == "completed"
    asked = payload(acme, run_id, "interrupt.requested")["data"]
    assert asked["artifactData"] == {"text": "old"}
    received = payload(acme, run_id, "approval.received")
    assert (received["action"], received["editedArtifactData"]) == ("edit-accept", {"text": "mine"})
    assert acme.snapshot(run_id)["outputs"]["gate"] == {
        "action": "edit-accept",
        "approved": True,
        "artifact": {"text": "mine"},
    }


@pytest.mark.parametrize("value", [{"action": "edit-accept"}, {"action": "refine"}])
def test_an_edit_without_data_and_a_refinement_without_feedback_are_refused(
    acme: Wire, value: Json
) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    assert refused(acme, run_id, "gate", value) == (400, "validation_error")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_question_is_logged_and_leaves_the_gate_open(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    asked = accepted(acme, run_id, "gate", {"action": "ask", "question": "Why blue?"})

    assert asked == "waiting-approval"
    said = payload(acme, run_id, "log.appended")
    assert said["fields"] == {
        "action": "ask",
        "question": "Why blue?",
        "askedBy": principal_of(ACME),
    }
    assert acme.snapshot(run_id)["interrupt"]["interruptId"] == "int-gate:0"
    assert accepted(acme, run_id, "gate", ACCEPT) == "completed"


def test_a_refinement_repeats_the_work_and_asks_once_more(acme: Wire) -> None:
    run_id = waiting_run(acme, node("work"), gate(actions=ALL), node("after"))

    status = accepted(acme, run_id, "gate", REFINE)

    assert status == "waiting-approval"
    assert payload(acme, run_id, "approval.received")["refineFeedback"] == REFINE["refineFeedback"]
    started = [event["nodeId"] for event in events(acme, run_id, "node.started")]
    assert started == ["work", "gate", "work", "gate"]
    assert acme.snapshot(run_id)["interrupt"]["interruptId"] == "int-gate:1"
    assert accepted(acme, run_id, "gate", ACCEPT) == "completed"


def test_work_can_be_refined_as_often_as_a_workflow_may_loop(acme: Wire) -> None:
    run_id = waiting_run(
        acme, node("work"), gate(actions=ALL), settings={"maxLoopbackIterations": 2}
    )

    statuses = [accepted(acme, run_id, "gate", REFINE) for _ in range(3)]

    assert statuses == ["waiting-approval", "waiting-approval", "failed"]
    assert acme.snapshot(run_id)["error"]["code"] == "loop_limit_exceeded"
    limit = payload(acme, run_id, "workflow.loopback-limit")
    assert limit == {"nodeId": "gate", "iterations": 3, "limit": 2}


def test_an_answer_can_name_its_version(acme: Wire) -> None:
    run_id = waiting_run(acme, node("work"), gate(actions=ALL))
    accepted(acme, run_id, "gate", REFINE)

    late = answer(acme, run_id, "gate", ACCEPT, params={"interruptId": "int-gate:0"})
    right = answer(acme, run_id, "gate", ACCEPT, params={"interruptId": "int-gate:1"})

    assert (late.status_code, late.json()["error"]) == (409, "interrupt_already_resolved")
    assert right.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("value", "status", "action"),
    [
        ({"decision": "approved"}, "completed", "accept"),
        ({"decision": "approved", "feedback": "ok"}, "completed", "accept"),
        ({"decision": "rejected"}, "failed", "reject"),
        ({"decision": "rejected", "feedback": "again"}, "waiting-approval", "refine"),
    ],
)
def test_the_decisions_of_older_clients_keep_their_meaning(
    acme: Wire, value: Json, status: str, action: str
) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    assert accepted(acme, run_id, "gate", value) == status
    assert payload(acme, run_id, "approval.received")["action"] == action


@pytest.mark.parametrize("decision", ["timeout", "cancelled"])
def test_outcomes_reserved_for_the_host_are_not_answers(acme: Wire, decision: str) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    assert refused(acme, run_id, "gate", {"decision": decision}) == (400, "validation_error")


def test_an_edge_for_failures_handles_a_rejection(acme: Wire) -> None:
    run_id = waiting_run(
        acme,
        gate(),
        node("apologise"),
        edges=[edge("gate", "apologise", triggerRule="any_failed")],
    )

    assert accepted(acme, run_id, "gate", REJECT) == "completed"
    assert acme.snapshot(run_id)["nodeStates"]["gate"]["error"]["code"] == "interrupt_rejected"


def test_each_round_of_a_loop_needs_its_own_approval(acme: Wire) -> None:
    def when(expression: str) -> Json:
        return {"type": "expression", "expression": expression}

    run_id = waiting_run(
        acme,
        node("head", "core.loop", config={"times": 2}),
        gate(),
        node("after"),
        edges=[
            edge("head", "gate", condition=when("!output.done")),
            edge("gate", "head"),
            edge("head", "after", condition=when("output.done")),
        ],
    )

    statuses = [accepted(acme, run_id, "gate", ACCEPT) for _ in range(2)]

    assert statuses == ["waiting-approval", "completed"]
    requested = events(acme, run_id, "interrupt.requested")
    assert [event["payload"]["key"] for event in requested] == ["gate:0", "gate:1"]
