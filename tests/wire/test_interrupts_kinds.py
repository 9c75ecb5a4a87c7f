from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME
from tests.support.interrupts import (
    ACCEPT,
    SUSPENDED,
    accepted,
    answer,
    events,
    external,
    gate,
    payload,
    principal_of,
    refused,
    waiting_run,
)
from wopr.protocol.documents import Json, JsonObject

BLUE = {"answers": {"q1": "blue"}}


# Clarification


def test_a_clarification_waits_for_input_and_is_completed_by_its_answers(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-clarification")
    before = fixtures.snapshot(run_id)

    status = accepted(fixtures, run_id, "ask", BLUE)

    assert (before["status"], before["currentNodeId"]) == ("waiting-input", "ask")
    assert status == "completed"
    assert fixtures.types(run_id) == [
        *SUSPENDED,
        "clarification.requested",
        "interrupt.resolved",
        "clarification.resolved",
        "node.resumed",
        "node.completed",
        "run.completed",
    ]
    asked = payload(fixtures, run_id, "clarification.requested")
    assert [each["id"] for each in asked["questions"]] == ["q1"]
    resolved = payload(fixtures, run_id, "clarification.resolved")
    assert resolved == {
        "nodeId": "ask",
        "answers": {"q1": "blue"},
        "answeredBy": principal_of(ACME),
    }


def test_the_list_form_of_answers_is_stored_as_the_map(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-clarification")

    accepted(fixtures, run_id, "ask", {"answers": [{"id": "q1", "answer": "blue"}]})

    assert payload(fixtures, run_id, "clarification.resolved")["answers"] == {"q1": "blue"}
    assert payload(fixtures, run_id, "interrupt.resolved")["resumeValue"] == BLUE
    assert fixtures.snapshot(run_id)["outputs"] == {"ask": BLUE}


@pytest.mark.parametrize("value", [{}, {"answers": {}}, {"answers": {"q2": 1}}, {"answers": "x"}])
def test_a_question_without_an_answer_keeps_the_run_waiting(fixtures: Wire, value: Json) -> None:
    run_id = fixtures.create("conformance-clarification")

    assert refused(fixtures, run_id, "ask", value) == (400, "validation_error")
    assert fixtures.snapshot(run_id)["status"] == "waiting-input"


@pytest.mark.parametrize("said", [None, {}])
@pytest.mark.parametrize(
    "schema", [None, {"type": "string"}, {"type": "object"}], ids=["none", "text", "object"]
)
def test_null_and_an_empty_object_are_not_answers(
    acme: Wire, said: Json, schema: JsonObject | None
) -> None:
    question = {"id": "why", "question": "Why?"} | ({} if schema is None else {"schema": schema})
    run_id = waiting_run(acme, gate("ask", "core.clarificationGate", questions=[question]))

    bad = answer(acme, run_id, "ask", {"answers": {"why": said}})

    assert bad.status_code == 400
    assert bad.json()["error"] == "validation_error"
    assert bad.json()["details"]["field"] == "resumeValue.answers.why"
    assert "resumeValue.answers.why is " in bad.json()["message"]
    assert acme.snapshot(run_id)["status"] == "waiting-input"
    listed = {"answers": [{"id": "why", "answer": said}]}
    assert refused(acme, run_id, "ask", listed) == (400, "validation_error")


def test_null_is_an_answer_where_the_question_s_schema_allows_it(acme: Wire) -> None:
    question = {"id": "why", "question": "Why?", "schema": {"type": ["string", "null"]}}
    run_id = waiting_run(acme, gate("ask", "core.clarificationGate", questions=[question]))

    assert refused(acme, run_id, "ask", {"answers": {"why": {}}}) == (400, "validation_error")
    assert accepted(acme, run_id, "ask", {"answers": {"why": None}}) == "completed"
    assert acme.snapshot(run_id)["outputs"] == {"ask": {"answers": {"why": None}}}


@pytest.mark.parametrize("said", [0, False, "", [], "none"])
def test_other_empty_values_are_answers(acme: Wire, said: Json) -> None:
    asked = [{"id": "why", "question": "Why?"}]
    run_id = waiting_run(acme, gate("ask", "core.clarificationGate", questions=asked))

    assert accepted(acme, run_id, "ask", {"answers": {"why": said}}) == "completed"


def test_an_answer_is_checked_against_the_schema_of_its_question(acme: Wire) -> None:
    asked = [
        {"id": "n", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "why", "question": "Why?"},
    ]
    run_id = waiting_run(acme, gate("ask", "core.clarificationGate", questions=asked))

    bad = answer(acme, run_id, "ask", {"answers": {"n": 0, "why": "x"}})

    assert bad.status_code == 400
    assert bad.json()["details"]["field"] == "resumeValue.answers.n"
    assert (
        accepted(acme, run_id, "ask", {"answers": {"n": 3, "why": ["any", "thing"]}}) == "completed"
    )


# Custom and resume schemas


def test_a_custom_wait_accepts_any_value(acme: Wire) -> None:
    data = {"customKind": "acme.weigh", "payload": {"unit": "kg"}}
    run_id = waiting_run(acme, gate("weigh", "core.interrupt", kind="custom", data=data))

    before = acme.snapshot(run_id)["status"]
    status = accepted(acme, run_id, "weigh", 72)

    assert (before, status) == ("waiting-input", "completed")
    assert payload(acme, run_id, "interrupt.requested")["data"] == data
    assert acme.snapshot(run_id)["outputs"] == {"weigh": {"value": 72}}


def test_a_null_is_a_value(acme: Wire) -> None:
    data = {"customKind": "acme.any"}
    run_id = waiting_run(acme, gate("any", "core.interrupt", kind="custom", data=data))

    assert accepted(acme, run_id, "any", None) == "completed"


def test_a_value_that_fails_the_resume_schema_keeps_the_run_waiting(acme: Wire) -> None:
    schema = {"type": "object", "properties": {"kg": {"type": "number"}}, "required": ["kg"]}
    config = {"kind": "custom", "data": {"customKind": "acme.weigh"}, "resumeSchema": schema}
    run_id = waiting_run(acme, gate("weigh", "core.interrupt", **config))

    bad = answer(acme, run_id, "weigh", {"kg": "heavy"})

    assert (bad.status_code, bad.json()["error"]) == (400, "validation_error")
    assert bad.json()["details"]["field"] == "resumeValue.kg"
    assert payload(acme, run_id, "interrupt.requested")["resumeSchema"] == schema
    assert accepted(acme, run_id, "weigh", {"kg": 72.5}) == "completed"


@pytest.mark.parametrize(
    ("kind", "data", "value", "status"),
    [
        (
            "approval",
            {"artifactId": "a", "artifactType": "t", "title": "t", "actions": ["accept"]},
            ACCEPT,
            "waiting-approval",
        ),
        ("clarification", {"questions": [{"id": "q1", "question": "?"}]}, BLUE, "waiting-input"),
        ("external-event", {"eventType": "e", "correlation": {}}, {}, "waiting-external"),
        ("custom", {"customKind": "k"}, {"any": 1}, "waiting-input"),
    ],
)
def test_a_node_can_wait_for_every_kind_that_a_workflow_may_open(
    acme: Wire, kind: str, data: Json, value: Json, status: str
) -> None:
    run_id = waiting_run(acme, gate("wait", "core.interrupt", kind=kind, data=data))

    assert acme.snapshot(run_id)["status"] == status
    assert acme.snapshot(run_id)["interrupt"]["kind"] == kind
    assert accepted(acme, run_id, "wait", value) == "completed"


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "conversation.start", "data": {"conversationId": "c", "title": "t"}},
        {"kind": "conversation.exchange", "data": {"conversationId": "c", "prompt": "p"}},
        {"kind": "conversation.close", "data": {"conversationId": "c", "reason": "r"}},
        {
            "kind": "low-confidence",
            "data": {"agentId": "local.a.b", "threshold": 0.7, "observed": 0.5},
        },
        {"kind": "nonsense", "data": {}},
        {"kind": "custom", "data": {}},
        {"kind": "custom", "data": {"customKind": "k", "more": 1}},
        {"kind": "external-event", "data": {"eventType": "e"}},
        {"kind": "clarification", "data": {"questions": []}},
        {"kind": "custom", "data": {"customKind": "k"}, "timeoutMs": -1},
        {"kind": "custom", "data": {"customKind": "k"}, "resumeSchema": {"type": "nonsense"}},
        {
            "kind": "custom",
            "data": {"customKind": "k"},
            "resumeSchema": {"$ref": "http://127.0.0.1:9/s.json"},
        },
    ],
)
def test_a_wait_that_could_not_be_answered_is_refused_at_registration(
    acme: Wire, config: dict[str, Json]
) -> None:
    response = acme.post("/v1/workflows", workflow([gate("w", "core.interrupt", **config)]))

    assert (response.status_code, response.json()["error"]) == (400, "validation_error")
    assert all(f["path"].startswith("nodes.0") for f in response.json()["details"]["errors"])


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [{"id": "q"}],
        [{"id": "q", "question": "?"}, {"id": "q", "question": "??"}],
        [{"id": "q", "question": "?", "schema": {"type": "nonsense"}}],
        [{"id": "q", "question": "?", "schema": {"$ref": "file:///etc/passwd"}}],
    ],
)
def test_questions_that_could_not_be_answered_are_refused_at_registration(
    acme: Wire, questions: Json
) -> None:
    asks = gate("ask", "core.clarificationGate", questions=questions)

    assert acme.post("/v1/workflows", workflow([asks])).status_code == 400


def test_an_answer_reaches_the_following_nodes(acme: Wire) -> None:
    asks = gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Who?"}])
    says = node(
        "say",
        "core.identity",
        inputs={
            "payload": {"type": "expression", "expression": "nodes.ask.answers.q"},
        },
    )
    run_id = waiting_run(acme, asks, says)

    accepted(acme, run_id, "ask", {"answers": {"q": "Ann"}})

    assert "Ann" in str(acme.finished(run_id)["outputs"])


# Unsure agents


@pytest.mark.parametrize(
    ("workflow_id", "node_id"),
    [
        ("conformance-agent-low-confidence", "low-conf-decider"),
        ("conformance-orchestrator-low-confidence", "supervisor"),
    ],
)
def test_an_unsure_decision_waits_for_approval_with_its_reason(
    fixtures: Wire, workflow_id: str, node_id: str
) -> None:
    run_id = fixtures.create(workflow_id)
    fixtures.events_until(run_id, "interrupt.requested")

    suspended = payload(fixtures, run_id, "node.suspended")

    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"
    assert suspended["nodeId"] == node_id
    assert suspended["kind"] == suspended["reason"] == "low-confidence"
    assert suspended["observed"] == 0.5
    assert suspended["threshold"] == 0.7
    assert suspended["agentId"]
    data = payload(fixtures, run_id, "interrupt.requested")["data"]
    assert (data["observed"], data["threshold"]) == (0.5, 0.7)


def test_a_pending_orchestrator_decision_is_held_and_emitted_once_when_ratified(
    fixtures: Wire,
) -> None:
    run_id = fixtures.create("conformance-orchestrator-low-confidence")
    fixtures.events_until(run_id, "interrupt.requested")
    before = fixtures.types(run_id)
    decision = {"kind": "terminate", "reason": "enough"}

    answer(fixtures, run_id, "supervisor", decision)
    fixtures.finished(run_id)

    assert "runOrchestrator.decided" not in before
    assert "node.dispatched" not in before
    [decided] = events(fixtures, run_id, "runOrchestrator.decided")
    assert decided["payload"]["decision"]["kind"] == "terminate"


def test_an_unknown_word_is_not_a_decision(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-agent-low-confidence")

    assert refused(fixtures, run_id, "low-conf-decider", {"action": "maybe"}) == (
        400,
        "validation_error",
    )
    assert fixtures.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_decision_fails_the_node(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-agent-low-confidence")

    assert accepted(fixtures, run_id, "low-conf-decider", {"action": "reject"}) == "failed"
    assert fixtures.snapshot(run_id)["error"]["code"] == "decision_rejected"


def test_an_event_wait_has_no_legacy_announcement(acme: Wire) -> None:
    run_id = waiting_run(acme, external())

    assert acme.types(run_id) == SUSPENDED


# Deadlines


def test_an_unanswered_wait_ends_at_its_deadline(acme: Wire) -> None:
    run_id = acme.create(acme.register(workflow([gate(timeoutMs=150)])))

    failed = acme.finished(run_id)

    assert (failed["status"], failed["error"]["code"]) == ("failed", "interrupt_timeout")
    assert payload(acme, run_id, "approval.received") == {"nodeId": "gate", "action": "timeout"}
    late = answer(acme, run_id, "gate", ACCEPT)
    assert (late.status_code, late.json()["details"]["resolvedBy"]) == (409, "system:timeout")
