from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import edge, node, workflow
from tests.support.host import ACME, REVIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    ALL,
    REFINE,
    REJECT,
    SUSPENDED,
    accepted,
    answer,
    events,
    gate,
    payload,
    principal_of,
    refused,
    waiting_run,
)
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

# The fixture


def test_an_approval_waits_and_is_completed_by_accept(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-approval")
    before = fixtures.snapshot(run_id)

    status = accepted(fixtures, run_id, "gate", ACCEPT)

    assert (before["status"], before["currentNodeId"]) == ("waiting-approval", "gate")
    assert status == "completed"
    assert fixtures.types(run_id) == [
        *SUSPENDED,
        "approval.requested",
        "interrupt.resolved",
        "approval.received",
        "node.resumed",
        "node.completed",
        "run.completed",
    ]


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (ACCEPT, {"action": "accept"}),
        (REJECT, {"action": "reject"}),
        (REFINE, {"action": "refine", "refineFeedback": REFINE["refineFeedback"]}),
        (
            {"action": "edit-accept", "editedArtifactData": {"text": "better"}},
            {"action": "edit-accept", "editedArtifactData": {"text": "better"}},
        ),
        ({"decision": "approved"}, {"action": "accept"}),
    ],
)
def test_the_end_of_an_approval_contains_its_action_beside_the_resume_value(
    acme: Wire, value: JsonObject, carried: JsonObject
) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    accepted(acme, run_id, "gate", value)

    resolved = events(acme, run_id, "interrupt.resolved")[0]["payload"]
    members = ("action", "refineFeedback", "editedArtifactData")
    assert {name: resolved[name] for name in members if name in resolved} == carried
    assert resolved["resumeValue"].items() >= carried.items()


@pytest.mark.parametrize(
    ("decision", "carried"),
    [
        ({"decision": "granted"}, {"action": "accept"}),
        (
            {"decision": "rejected", "reason": "too long"},
            {"action": "refine", "refineFeedback": {"scope": "whole", "text": "too long"}},
        ),
    ],
)
def test_the_end_of_a_governance_gate_contains_its_action_too(
    acme: Wire, decision: JsonObject, carried: JsonObject
) -> None:
    governed = gate("gate", "core.openwop.governance.approvalGate", requiredRole="admin")
    run_id = waiting_run(acme, governed)

    accepted(acme, run_id, "gate", decision)

    resolved = events(acme, run_id, "interrupt.resolved")[0]["payload"]
    assert resolved.items() >= carried.items()
    assert resolved["resumeValue"] == decision


def test_a_rejected_approval_fails_the_run_with_its_code(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-approval")

    assert accepted(fixtures, run_id, "gate", REJECT) == "failed"

    assert fixtures.snapshot(run_id)["error"]["code"] == "interrupt_rejected"
    assert payload(fixtures, run_id, "approval.received")["action"] == "reject"


@pytest.mark.parametrize(
    "value",
    [{"action": "maybe"}, {"action": "edit", "editedArtifactData": 1}, {}, None, "accept", REFINE],
)
def test_an_action_that_the_gate_does_not_offer_is_refused_and_it_stays_open(
    fixtures: Wire, value: Json
) -> None:
    run_id = fixtures.create("conformance-approval")
    log = fixtures.types(run_id)

    assert refused(fixtures, run_id, "gate", value) == (400, "validation_error")

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert fixtures.types(run_id) == log
    assert accepted(fixtures, run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize(
    "body", [{}, {"resumeValue": ACCEPT, "more": 1}, [], "accept", {"resume_value": ACCEPT}]
)
def test_the_body_is_closed_and_requires_a_resume_value(fixtures: Wire, body: Json) -> None:
    run_id = fixtures.create("conformance-approval")

    response = fixtures.post(f"/v1/runs/{run_id}/interrupts/gate", body)

    assert response.status_code == 400
    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize(
    ("run", "node_id", "told"),
    [
        (None, "nobody", "The run has no node 'nobody'."),
        ("no-such-run", "gate", "there is no such run"),
    ],
)
def test_an_unknown_run_or_node_is_not_found(
    fixtures: Wire, run: str | None, node_id: str, told: str
) -> None:
    run_id = run or fixtures.create("conformance-approval")

    answer = fixtures.post(f"/v1/runs/{run_id}/interrupts/{node_id}", {"resumeValue": ACCEPT})

    assert answer.status_code == 404
    assert answer.json() == {"error": "interrupt_not_found", "message": told}


def test_a_node_that_does_not_wait_is_not_found(acme: Wire) -> None:
    run_id = waiting_run(acme, node("before"), gate(), node("after"))

    assert refused(acme, run_id, "before", ACCEPT) == (404, "interrupt_not_found")
    assert refused(acme, run_id, "after", ACCEPT) == (404, "interrupt_not_found")


def test_an_impossible_run_id_is_answered_like_an_unknown_one(acme: Wire) -> None:
    unknown = answer(acme, "no-such-run", "gate", ACCEPT)

    assert answer(acme, "x" * 500, "gate", ACCEPT).content == unknown.content


def test_a_node_id_can_be_any_text(acme: Wire) -> None:
    run_id = waiting_run(acme, gate("a/b c?d"))

    response = acme.post(f"/v1/runs/{run_id}/interrupts/a%2Fb%20c%3Fd", {"resumeValue": ACCEPT})

    assert response.json()["status"] == "completed"


# The events


def test_a_suspension_describes_the_request_in_protocol_order(acme: Wire) -> None:
    config: JsonObject = {
        "description": "Look twice.",
        "actions": ALL,
        "approversList": [principal_of(ACME)],
    }
    run_id = waiting_run(acme, gate(**config))

    suspended, requested, legacy = acme.log(run_id)[2:]

    assert [e["type"] for e in (suspended, requested, legacy)] == [
        "node.suspended",
        "interrupt.requested",
        "approval.requested",
    ]
    assert suspended["payload"] == {
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "kind": "approval",
        "key": "gate:0",
    }
    assert requested["payload"]["kind"] == "approval"
    assert requested["payload"]["data"] == {
        "artifactId": "gate:0",
        "artifactType": "approval",
        "title": "Fine?",
        "requiredApprovals": 1,
        "rejectionPolicy": "single-veto",
        **config,
    }
    assert requested["nodeId"] == legacy["nodeId"] == "gate"
    assert requested["causationId"] == legacy["causationId"] == suspended["eventId"]


def test_the_older_event_says_edit_where_the_interrupt_says_edit_accept(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(actions=ALL))

    assert payload(acme, run_id, "approval.requested")["actions"] == [
        "accept",
        "reject",
        "refine",
        "edit",
        "ask",
    ]
    assert payload(acme, run_id, "interrupt.requested")["data"]["actions"] == ALL


def test_the_resolution_is_logged_with_author_and_value_before_the_node_continues(
    acme: Wire,
) -> None:
    run_id = waiting_run(acme, gate())

    accepted(acme, run_id, "gate", ACCEPT | {"feedback": "good"})

    resolved, received, resumed = acme.log(run_id)[5:8]
    value = {"action": "accept", "feedback": "good"}
    assert resolved["type"] == "interrupt.resolved"
    assert resolved["payload"] == {
        "action": "accept",
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "kind": "approval",
        "resumeValue": value,
        "resolvedAt": resolved["timestamp"],
        "resolvedBy": principal_of(ACME),
    }
    assert received["payload"] == {
        "nodeId": "gate",
        "decidedBy": principal_of(ACME),
        "decidedAt": received["timestamp"],
        **value,
    }
    assert resumed["type"] == "node.resumed"
    assert resumed["payload"]["resumeValue"] == value
    assert resolved["causationId"] == events(acme, run_id, "node.suspended")[0]["eventId"]


def test_an_interrupt_is_neither_a_pause_nor_a_resume(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    accepted(acme, run_id, "gate", ACCEPT)

    assert not {"run.paused", "run.resumed"} & set(acme.types(run_id))


def test_the_decider_is_set_by_the_host_and_not_by_the_client(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    forged = {"decidedBy": "the-boss", "resolvedBy": "the-boss", "decidedAt": "1999-01-01"}

    accepted(acme, run_id, "gate", ACCEPT | forged)

    assert payload(acme, run_id, "approval.received")["decidedBy"] == principal_of(ACME)
    assert payload(acme, run_id, "interrupt.resolved")["resolvedBy"] == principal_of(ACME)
    assert "1999-01-01" not in str(acme.log(run_id))
    assert "the-boss" not in str(acme.log(run_id))


# Repeated answers


def test_the_same_request_with_its_key_is_executed_once(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    keyed = {"headers": {"Idempotency-Key": f"answer-{run_id}"}}

    first = answer(acme, run_id, "gate", ACCEPT, **keyed)
    second = answer(acme, run_id, "gate", ACCEPT, **keyed)

    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert second.headers["openwop-idempotent-replay"] == "true"
    assert len(events(acme, run_id, "interrupt.resolved")) == 1


def test_a_later_answer_is_refused_with_the_first_author(connect: Connect, acme: Wire) -> None:
    run_id = waiting_run(acme, gate())
    accepted(connect(REVIEWER), run_id, "gate", ACCEPT)

    late = answer(acme, run_id, "gate", REJECT)

    assert (late.status_code, late.json()["error"]) == (409, "interrupt_already_resolved")
    assert late.json()["details"] == {
        "resolvedBy": principal_of(REVIEWER),
        "interruptId": "int-gate:0",
    }
    assert acme.snapshot(run_id)["status"] == "completed"


# Pause, cancel, several waits


@pytest.mark.parametrize("policy", ["drain-current-node", "immediate"])
def test_a_waiting_run_is_not_paused_and_its_interrupt_is_not_lost(acme: Wire, policy: str) -> None:
    run_id = waiting_run(acme, gate())

    response = acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": policy})

    assert response.status_code == 409
    assert response.json()["details"]["runStatus"] == "waiting-approval"
    assert accepted(acme, run_id, "gate", ACCEPT) == "completed"


def test_cancelling_a_waiting_run_ends_the_wait(acme: Wire) -> None:
    run_id = waiting_run(acme, gate())

    cancelled = acme.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})

    assert cancelled.json()["status"] == "cancelled"
    assert refused(acme, run_id, "gate", ACCEPT) == (422, "interrupt_cancelled")
    assert acme.types(run_id)[-2:] == ["node.cancelled", "run.cancelled"]
    assert "interrupt" not in acme.snapshot(run_id)


def test_several_waiting_nodes_are_answered_in_any_order(acme: Wire, host: ServedHost) -> None:
    asks = gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Why?"}])
    ends = [edge("gate", "join"), edge("ask", "join")]
    run_id = waiting_run(acme, gate(), asks, node("join"), edges=ends)
    both = acme.document("/v1/interrupts", params={"runId": run_id})["items"]

    first = accepted(acme, run_id, "ask", {"answers": {"q": "because"}})
    second = accepted(acme, run_id, "gate", ACCEPT)

    assert {item["nodeId"] for item in both} == {"gate", "ask"}
    assert (first, second) == ("waiting-approval", "completed")


def test_an_unanswered_wait_ends_when_its_run_fails(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([gate(), node("broken", "core.fail")], edges=[])))

    failed = acme.finished(run_id)

    assert failed["status"] == "failed"
    assert refused(acme, run_id, "gate", ACCEPT) == (404, "interrupt_not_found")
    assert acme.document("/v1/interrupts", params={"runId": run_id})["items"] == []
