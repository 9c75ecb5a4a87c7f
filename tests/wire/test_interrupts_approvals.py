from __future__ import annotations

import pytest

from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.definitions import edge, node, workflow
from tests.wire.host import ACME, DEVELOPER, LIVE, OPERATOR, REVIEWER, VIEWER, ServedHost
from tests.wire.waiting import (
    ACCEPT,
    REFINE,
    REJECT,
    SUSPENDED,
    answer,
    events,
    gate,
    name_of,
    payload,
    refused,
    taken,
    waiting,
)
from wopr.protocol.documents import Json, JsonObject

EDIT = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}
ALL = ["accept", "reject", "refine", "edit-accept", "ask"]


# The fixture


def test_an_approval_waits_and_is_completed_by_accept(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-approval")
    before = fixtures.snapshot(run_id)

    status = taken(fixtures, run_id, "gate", ACCEPT)

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


def test_a_rejected_approval_fails_the_run_with_its_code(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-approval")

    assert taken(fixtures, run_id, "gate", REJECT) == "failed"

    assert fixtures.snapshot(run_id)["error"]["code"] == "interrupt_rejected"
    assert payload(fixtures, run_id, "approval.received")["action"] == "reject"


@pytest.mark.parametrize(
    "value",
    [{"action": "maybe"}, {"action": "edit", "editedArtifactData": 1}, {}, None, "accept", REFINE],
)
def test_what_the_gate_does_not_offer_is_refused_and_it_stays_open(
    fixtures: Wire, value: Json
) -> None:
    run_id = fixtures.create("conformance-approval")
    log = fixtures.types(run_id)

    assert refused(fixtures, run_id, "gate", value) == (400, "validation_error")

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert fixtures.types(run_id) == log
    assert taken(fixtures, run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize(
    "body", [{}, {"resumeValue": ACCEPT, "more": 1}, [], "accept", {"resume_value": ACCEPT}]
)
def test_the_body_is_closed_and_has_a_resume_value(fixtures: Wire, body: Json) -> None:
    run_id = fixtures.create("conformance-approval")

    response = fixtures.post(f"/v1/runs/{run_id}/interrupts/gate", body)

    assert response.status_code == 400
    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize(("run", "node_id"), [(None, "nobody"), ("no-such-run", "gate")])
def test_an_unknown_run_or_node_is_not_found(fixtures: Wire, run: str | None, node_id: str) -> None:
    run_id = run or fixtures.create("conformance-approval")

    assert refused(fixtures, run_id, node_id, ACCEPT) == (404, "interrupt_not_found")


def test_a_node_that_does_not_wait_is_not_found(acme: Wire) -> None:
    run_id = waiting(acme, node("before"), gate(), node("after"))

    assert refused(acme, run_id, "before", ACCEPT) == (404, "interrupt_not_found")
    assert refused(acme, run_id, "after", ACCEPT) == (404, "interrupt_not_found")


def test_an_id_that_no_run_can_have_is_answered_like_an_unknown_one(acme: Wire) -> None:
    unknown = answer(acme, "no-such-run", "gate", ACCEPT)

    assert answer(acme, "x" * 500, "gate", ACCEPT).content == unknown.content


def test_a_node_id_may_be_any_text(acme: Wire) -> None:
    run_id = waiting(acme, gate("a/b c?d"))

    response = acme.post(f"/v1/runs/{run_id}/interrupts/a%2Fb%20c%3Fd", {"resumeValue": ACCEPT})

    assert response.json()["status"] == "completed"


# The events


def test_a_suspension_says_what_is_asked_in_the_order_of_the_protocol(acme: Wire) -> None:
    config: JsonObject = {
        "description": "Look twice.",
        "actions": ALL,
        "approversList": [name_of(ACME)],
    }
    run_id = waiting(acme, gate(**config))

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


def test_the_older_event_writes_edit_where_the_interrupt_says_edit_accept(acme: Wire) -> None:
    run_id = waiting(acme, gate(actions=ALL))

    assert payload(acme, run_id, "approval.requested")["actions"] == [
        "accept",
        "reject",
        "refine",
        "edit",
        "ask",
    ]
    assert payload(acme, run_id, "interrupt.requested")["data"]["actions"] == ALL


def test_a_resolution_says_who_and_what_before_the_node_goes_on(acme: Wire) -> None:
    run_id = waiting(acme, gate())

    taken(acme, run_id, "gate", ACCEPT | {"feedback": "good"})

    resolved, received, resumed = acme.log(run_id)[5:8]
    value = {"action": "accept", "feedback": "good"}
    assert resolved["type"] == "interrupt.resolved"
    assert resolved["payload"] == {
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "kind": "approval",
        "resumeValue": value,
        "resolvedAt": resolved["timestamp"],
        "resolvedBy": name_of(ACME),
    }
    assert received["payload"] == {
        "nodeId": "gate",
        "decidedBy": name_of(ACME),
        "decidedAt": received["timestamp"],
        **value,
    }
    assert resumed["type"] == "node.resumed"
    assert resumed["payload"]["resumeValue"] == value
    assert resolved["causationId"] == events(acme, run_id, "node.suspended")[0]["eventId"]


def test_an_interrupt_is_neither_a_pause_nor_a_resume(acme: Wire) -> None:
    run_id = waiting(acme, gate())
    taken(acme, run_id, "gate", ACCEPT)

    assert not {"run.paused", "run.resumed"} & set(acme.types(run_id))


def test_who_decided_comes_from_the_host_whatever_the_client_says(acme: Wire) -> None:
    run_id = waiting(acme, gate())
    forged = {"decidedBy": "the-boss", "resolvedBy": "the-boss", "decidedAt": "1999-01-01"}

    taken(acme, run_id, "gate", ACCEPT | forged)

    assert payload(acme, run_id, "approval.received")["decidedBy"] == name_of(ACME)
    assert payload(acme, run_id, "interrupt.resolved")["resolvedBy"] == name_of(ACME)
    assert "1999" not in str(acme.log(run_id))
    assert "the-boss" not in str(acme.log(run_id))


# Actions


def test_an_edit_hands_the_edited_version_on(acme: Wire) -> None:
    read = {"artifact": {"type": "variable", "variableName": "draft"}}
    shown = node("gate", "core.approvalGate", inputs=read, config={"title": "t", "actions": ALL})
    definition = workflow(
        [shown], variables=[{"name": "draft", "type": "object", "defaultValue": {"text": "old"}}]
    )
    run_id = acme.create(acme.register(definition))

    status = taken(acme, run_id, "gate", EDIT)

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
    run_id = waiting(acme, gate(actions=ALL))

    assert refused(acme, run_id, "gate", value) == (400, "validation_error")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_question_is_recorded_and_leaves_the_gate_open(acme: Wire) -> None:
    run_id = waiting(acme, gate(actions=ALL))

    asked = taken(acme, run_id, "gate", {"action": "ask", "question": "Why blue?"})

    assert asked == "waiting-approval"
    said = payload(acme, run_id, "log.appended")
    assert said["fields"] == {"action": "ask", "question": "Why blue?", "askedBy": name_of(ACME)}
    assert acme.snapshot(run_id)["interrupt"]["interruptId"] == "int-gate:0"
    assert taken(acme, run_id, "gate", ACCEPT) == "completed"


def test_a_refinement_does_the_work_again_and_asks_once_more(acme: Wire) -> None:
    run_id = waiting(acme, node("work"), gate(actions=ALL), node("after"))

    status = taken(acme, run_id, "gate", REFINE)

    assert status == "waiting-approval"
    assert payload(acme, run_id, "approval.received")["refineFeedback"] == REFINE["refineFeedback"]
    started = [event["nodeId"] for event in events(acme, run_id, "node.started")]
    assert started == ["work", "gate", "work", "gate"]
    assert acme.snapshot(run_id)["interrupt"]["interruptId"] == "int-gate:1"
    assert taken(acme, run_id, "gate", ACCEPT) == "completed"


def test_work_can_be_sent_back_as_often_as_a_workflow_may_loop(acme: Wire) -> None:
    run_id = waiting(acme, node("work"), gate(actions=ALL), settings={"maxLoopbackIterations": 2})

    statuses = [taken(acme, run_id, "gate", REFINE) for _ in range(3)]

    assert statuses == ["waiting-approval", "waiting-approval", "failed"]
    assert acme.snapshot(run_id)["error"]["code"] == "loop_limit_exceeded"
    limit = payload(acme, run_id, "workflow.loopback-limit")
    assert limit == {"nodeId": "gate", "iterations": 3, "limit": 2}


def test_an_answer_may_name_the_version_that_it_is_for(acme: Wire) -> None:
    run_id = waiting(acme, node("work"), gate(actions=ALL))
    taken(acme, run_id, "gate", REFINE)

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
def test_the_decisions_of_older_clients_mean_what_they_meant(
    acme: Wire, value: Json, status: str, action: str
) -> None:
    run_id = waiting(acme, gate(actions=ALL))

    assert taken(acme, run_id, "gate", value) == status
    assert payload(acme, run_id, "approval.received")["action"] == action


@pytest.mark.parametrize("decision", ["timeout", "cancelled"])
def test_the_hosts_own_endings_are_no_answers(acme: Wire, decision: str) -> None:
    run_id = waiting(acme, gate(actions=ALL))

    assert refused(acme, run_id, "gate", {"decision": decision}) == (400, "validation_error")


def test_an_edge_that_listens_to_failures_handles_a_rejection(acme: Wire) -> None:
    run_id = waiting(
        acme,
        gate(),
        node("apologise"),
        edges=[edge("gate", "apologise", triggerRule="any_failed")],
    )

    assert taken(acme, run_id, "gate", REJECT) == "completed"
    assert acme.snapshot(run_id)["nodeStates"]["gate"]["error"]["code"] == "interrupt_rejected"


def test_each_round_of_a_loop_is_approved_for_itself(acme: Wire) -> None:
    def when(expression: str) -> Json:
        return {"type": "expression", "expression": expression}

    run_id = waiting(
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

    statuses = [taken(acme, run_id, "gate", ACCEPT) for _ in range(2)]

    assert statuses == ["waiting-approval", "completed"]
    requested = events(acme, run_id, "interrupt.requested")
    assert [event["payload"]["key"] for event in requested] == ["gate:0", "gate:1"]


# Who may


@pytest.mark.parametrize("key", [OPERATOR, REVIEWER, LIVE])
def test_a_key_with_the_scope_may_answer(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting(acme, gate())

    assert taken(connect(key), run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize("key", [VIEWER, DEVELOPER])
def test_a_key_without_the_scope_may_not(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting(acme, gate())

    response = answer(connect(key), run_id, "gate", ACCEPT)

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "approvals:respond"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_without_a_key_nobody_may(nobody: Wire, acme: Wire) -> None:
    run_id = waiting(acme, gate())

    assert refused(nobody, run_id, "gate", ACCEPT) == (401, "unauthenticated")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize(
    "config",
    [{"approversList": [name_of(REVIEWER)]}, {"approverRoleRefs": ["reviewer"]}],
    ids=["by name", "by role"],
)
def test_only_those_whom_a_gate_names_may_decide(
    connect: Connect, live: Wire, config: dict[str, Json]
) -> None:
    run_id = waiting(live, gate(actions=ALL, **config))

    for value in (ACCEPT, REJECT, REFINE, EDIT, {"action": "ask"}):
        assert refused(live, run_id, "gate", value) == (403, "forbidden")

    assert live.snapshot(run_id)["status"] == "waiting-approval"
    assert not events(live, run_id, "log.appended")
    assert taken(connect(REVIEWER), run_id, "gate", ACCEPT) == "completed"
    assert payload(live, run_id, "approval.received")["decidedBy"] == name_of(REVIEWER)


def test_a_list_and_a_role_both_entitle(connect: Connect, live: Wire) -> None:
    config: JsonObject = {"approversList": [name_of(LIVE)], "approverRoleRefs": ["reviewer"]}

    for key in (LIVE, REVIEWER):
        run_id = waiting(live, gate(**config))
        assert taken(connect(key), run_id, "gate", ACCEPT) == "completed"


def test_the_audience_is_told_and_is_not_who_may_decide(live: Wire) -> None:
    audience = {"subjects": ["someone-else"], "roles": ["viewer"]}
    run_id = waiting(live, gate(audience=audience))

    assert payload(live, run_id, "interrupt.requested")["data"]["audience"] == audience
    assert taken(live, run_id, "gate", ACCEPT) == "completed"


def test_groups_that_nobody_is_in_are_shown_and_entitle_nobody(live: Wire) -> None:
    config: JsonObject = {"approverGroupRefs": ["group:legal"], "approversList": ["someone"]}
    run_id = waiting(live, gate(**config))

    assert payload(live, run_id, "interrupt.requested")["data"]["approverGroupRefs"] == [
        "group:legal"
    ]
    assert refused(live, run_id, "gate", ACCEPT) == (403, "forbidden")


@pytest.mark.parametrize(
    "waits",
    [
        gate(approverGroupRefs=["group:legal"]),
        gate(
            type_id="core.interrupt",
            kind="approval",
            data={
                "artifactId": "a",
                "artifactType": "t",
                "title": "t",
                "actions": ["accept"],
                "approverGroupRefs": ["group:legal"],
            },
        ),
    ],
)
def test_a_gate_that_nobody_could_open_is_refused_when_it_is_registered(
    acme: Wire, waits: dict[str, Json]
) -> None:
    response = acme.post("/v1/workflows", workflow([waits]))

    assert response.status_code == 400
    assert "groups" in response.json()["message"]


# Sent once, sent twice


def test_the_same_request_with_its_key_is_answered_once(acme: Wire) -> None:
    run_id = waiting(acme, gate())
    keyed = {"headers": {"Idempotency-Key": f"answer-{run_id}"}}

    first = answer(acme, run_id, "gate", ACCEPT, **keyed)
    second = answer(acme, run_id, "gate", ACCEPT, **keyed)

    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert second.headers["openwop-idempotent-replay"] == "true"
    assert len(events(acme, run_id, "interrupt.resolved")) == 1


def test_a_later_answer_is_told_who_was_first(connect: Connect, acme: Wire) -> None:
    run_id = waiting(acme, gate())
    taken(connect(REVIEWER), run_id, "gate", ACCEPT)

    late = answer(acme, run_id, "gate", REJECT)

    assert (late.status_code, late.json()["error"]) == (409, "interrupt_already_resolved")
    assert late.json()["details"] == {"resolvedBy": name_of(REVIEWER), "interruptId": "int-gate:0"}
    assert acme.snapshot(run_id)["status"] == "completed"


# Pause, cancel, several at once


@pytest.mark.parametrize("policy", ["drain-current-node", "immediate"])
def test_a_waiting_run_is_not_paused_and_its_interrupt_is_not_lost(acme: Wire, policy: str) -> None:
    run_id = waiting(acme, gate())

    response = acme.post(f"/v1/runs/{run_id}:pause", {"drainPolicy": policy})

    assert response.status_code == 409
    assert response.json()["details"]["runStatus"] == "waiting-approval"
    assert taken(acme, run_id, "gate", ACCEPT) == "completed"


def test_cancelling_a_waiting_run_ends_the_wait(acme: Wire) -> None:
    run_id = waiting(acme, gate())

    cancelled = acme.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})

    assert cancelled.json()["status"] == "cancelled"
    assert refused(acme, run_id, "gate", ACCEPT) == (422, "interrupt_cancelled")
    assert acme.types(run_id)[-2:] == ["node.cancelled", "run.cancelled"]
    assert "interrupt" not in acme.snapshot(run_id)


def test_several_nodes_wait_at_once_and_are_answered_in_any_order(
    acme: Wire, host: ServedHost
) -> None:
    asks = gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Why?"}])
    ends = [edge("gate", "join"), edge("ask", "join")]
    run_id = waiting(acme, gate(), asks, node("join"), edges=ends)
    both = acme.document("/v1/interrupts", params={"runId": run_id})["items"]

    first = taken(acme, run_id, "ask", {"answers": {"q": "because"}})
    second = taken(acme, run_id, "gate", ACCEPT)

    assert {item["nodeId"] for item in both} == {"gate", "ask"}
    assert (first, second) == ("waiting-approval", "completed")


def test_a_wait_that_was_not_answered_is_gone_when_its_run_fails_elsewhere(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([gate(), node("broken", "core.fail")], edges=[])))

    failed = acme.finished(run_id)

    assert failed["status"] == "failed"
    assert refused(acme, run_id, "gate", ACCEPT) == (404, "interrupt_not_found")
    assert acme.document("/v1/interrupts", params={"runId": run_id})["items"] == []
