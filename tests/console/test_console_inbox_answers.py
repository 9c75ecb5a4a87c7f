"""Answers of every kind, given with the forms of the inbox."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.conftest import SignedIn
from tests.console.inbox import ACTIONS, answered, resolved, unsure, went_on
from tests.support.agent_definitions import DONE, next_worker, supervised
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import node
from tests.support.host import ACME, REVIEWER, ServedHost
from tests.support.interrupts import (
    gate,
    inbox,
    payload,
    waiting_run,
)
from tests.wire.test_interrupts_governance import TYPE as GOVERNANCE_GATE
from wopr.protocol.documents import Json, JsonObject


@pytest.mark.parametrize(
    ("fields", "value", "status"),
    [
        ({"answer": "accept"}, {"action": "accept"}, "completed"),
        ({"answer": "accept", "reason": "ok"}, {"action": "accept", "feedback": "ok"}, "completed"),
        ({"answer": "reject", "reason": "no"}, {"action": "reject", "feedback": "no"}, "failed"),
        (
            {"answer": "edit-accept", "edited": '{"to": "Bea"}'},
            {"action": "edit-accept", "editedArtifactData": {"to": "Bea"}},
            "completed",
        ),
    ],
    ids=["accept", "accept with a reason", "reject", "edit"],
)
def test_an_approval_is_answered(
    acme: Person, wire: Wire, fields: dict[str, str], value: JsonObject, status: str
) -> None:
    letter = {"type": "expression", "expression": '{"to": "Ada"}'}
    asked = gate(actions=ACTIONS) | {"inputs": {"artifact": letter}}
    run_id = waiting_run(wire, asked)

    went_on(answered(acme, run_id, **fields))

    assert resolved(wire, run_id) == value
    assert wire.finished(run_id)["status"] == status


def test_an_artifact_that_is_text_is_edited_as_text(acme: Person, wire: Wire) -> None:
    text = {"type": "expression", "expression": '"Dear Ada"'}
    run_id = waiting_run(wire, gate(actions=ACTIONS) | {"inputs": {"artifact": text}})

    went_on(answered(acme, run_id, answer="edit-accept", edited="Dear Bea"))

    assert resolved(wire, run_id) == {
        "action": "edit-accept",
        "editedArtifactData": "Dear Bea",
    }


def test_work_is_sent_back_with_the_requested_change(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, node("draft"), gate(actions=ACTIONS))

    refused = answered(acme, run_id, answer="refine")
    went_on(answered(acme, run_id, answer="refine", reason="shorter"))

    assert refused.status_code == 400
    assert "enter what to change" in refused.text
    feedback = {"scope": "whole", "text": "shorter"}
    assert resolved(wire, run_id) == {"action": "refine", "refineFeedback": feedback}


def test_a_counter_question_leaves_the_gate_open(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate(actions=ACTIONS))

    went_on(answered(acme, run_id, answer="ask", reason="Who is Ada?"), "asked")

    assert wire.snapshot(run_id)["status"] == "waiting-approval"
    assert payload(wire, run_id, "log.appended")["fields"]["question"] == "Who is Ada?"


def test_questions_are_answered_in_fields_generated_from_their_schemas(
    acme: Person, wire: Wire
) -> None:
    questions = [
        {"id": "colour", "question": "Which?", "schema": {"enum": ["red", "blue"]}},
        {"id": "count", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "sure", "question": "Sure?", "schema": {"type": "boolean"}},
        {
            "id": "tags",
            "question": "Tags?",
            "schema": {"type": "array", "items": {"type": "string"}},
        },
        {"id": "why", "question": "Why?"},
    ]
    run_id = waiting_run(wire, gate("ask", "core.clarificationGate", questions=questions))
    fields = {
        "answer": "answers",
        "answer.colour": '"blue"',
        "answer.count": "3",
        "answer.sure": "true",
        "answer.tags": "a\nb",
        "answer.why": "because",
    }

    went_on(answered(acme, run_id, "ask", **fields))

    said = {"colour": "blue", "count": 3, "sure": True, "tags": ["a", "b"], "why": "because"}
    assert resolved(wire, run_id) == {"answers": said}


def test_an_invalid_answer_is_shown_again_with_its_errors(acme: Person, wire: Wire) -> None:
    questions = [
        {"id": "count", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "why", "question": "Why?"},
    ]
    run_id = waiting_run(wire, gate("ask", "core.clarificationGate", questions=questions))

    small = answered(acme, run_id, "ask", **{"answer": "answers", "answer.count": "0"})
    word = answered(acme, run_id, "ask", **{"answer": "answers", "answer.count": "many"})
    kept = {"answer": "answers", "answer.count": "2", "answer.why": ""}
    missing = answered(acme, run_id, "ask", **kept)

    assert [each.status_code for each in (small, word, missing)] == [400, 400, 400]
    assert "0 is less than the minimum of 1" in Markup(small.text).text
    assert "must be a whole number" in word.text
    assert Markup(missing.text).all("input", name="answer.count", value="2")
    assert "is missing: Why?" in Markup(missing.text).text
    assert wire.snapshot(run_id)["status"] == "waiting-input"


@pytest.mark.parametrize(
    ("fields", "value", "status"),
    [
        ({"answer": "accept"}, {"action": "accept"}, "completed"),
        ({"answer": "reject"}, {"action": "reject"}, "failed"),
        (
            {"answer": "decision", "edited": '{"topic": "invoice"}'},
            {"decision": {"topic": "invoice"}},
            "completed",
        ),
    ],
    ids=["ratify", "reject", "override"],
)
def test_an_unsure_decision_is_ratified_rejected_or_replaced(
    acme: Person, wire: Wire, fields: dict[str, str], value: JsonObject, status: str
) -> None:
    run_id = unsure(wire)

    went_on(answered(acme, run_id, "actor", **fields))

    assert resolved(wire, run_id) == value
    assert wire.finished(run_id)["status"] == status


def test_a_decision_that_is_not_json_is_refused(acme: Person, wire: Wire) -> None:
    run_id = unsure(wire)

    answer = answered(acme, run_id, "actor", answer="decision", edited="{topic")

    assert answer.status_code == 400
    assert "must be JSON" in answer.text
    assert "{topic" in answer.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_conversation_continues_turn_by_turn_and_is_closed(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate("talk", "core.conversationGate", prompt="What now?"))

    went_on(answered(acme, run_id, "talk", answer="exchange", turn="Look at prices."), "said")
    page = acme.page(f"/inbox/{run_id}/talk")
    went_on(answered(acme, run_id, "talk", answer="close", turn="Enough."))

    assert "What now?" in page.text
    assert "Look at prices." in page.text
    assert wire.finished(run_id)["status"] == "completed"


def test_a_governance_gate_accepts_a_decision_and_a_reason(
    signed_in: SignedIn, acme: Person, wire: Wire
) -> None:
    run_id = waiting_run(wire, gate("gate", GOVERNANCE_GATE, requiredRole="reviewer"))
    reviewer = signed_in(REVIEWER)

    others = acme.page(f"/inbox/{run_id}/gate")
    went_on(answered(reviewer, run_id, answer="granted", reason="within limits"))

    assert "role reviewer" in others.text
    assert not others.all("button", name="answer")
    assert resolved(wire, run_id) == {"decision": "granted", "reason": "within limits"}


def test_a_custom_wait_accepts_what_its_schema_allows(acme: Person, wire: Wire) -> None:
    schema = {
        "type": "object",
        "required": ["level"],
        "properties": {"level": {"enum": [1, 2]}, "note": {"type": "string"}},
    }
    asked = {"kind": "custom", "data": {"customKind": "vendor.level"}, "resumeSchema": schema}
    run_id = waiting_run(wire, gate("pick", "core.interrupt", **asked))

    refused = answered(acme, run_id, "pick", **{"answer": "value", "value.note": "x"})
    went_on(answered(acme, run_id, "pick", **{"answer": "value", "value.level": "2"}))

    assert refused.status_code == 400
    assert "level" in refused.text
    assert resolved(wire, run_id) == {"level": 2}


def test_a_custom_wait_offers_yes_and_no_where_its_schema_allows_them(
    acme: Person, wire: Wire
) -> None:
    schema = {"anyOf": [{"enum": ["accept", "reject"]}, {"type": "object", "required": ["to"]}]}
    asked = {"kind": "custom", "data": {"customKind": "vendor.look"}, "resumeSchema": schema}
    run_id = waiting_run(wire, gate("pick", "core.interrupt", **asked))

    page = acme.page(f"/inbox/{run_id}/pick")
    went_on(answered(acme, run_id, "pick", answer="accept"))

    assert [b["value"] for b in page.all("button", name="answer")] == ["accept", "reject", "value"]
    assert resolved(wire, run_id) == "accept"


def test_an_approval_with_a_schema_has_fields_for_it(acme: Person, wire: Wire) -> None:
    data = {"artifactId": "a", "artifactType": "t", "title": "Fine?", "actions": ["accept"]}
    schema = {
        "type": "object",
        "required": ["action", "ticket"],
        "properties": {"action": {}, "ticket": {"type": "string", "minLength": 3}},
    }
    asked = {"kind": "approval", "data": data, "resumeSchema": schema}
    run_id = waiting_run(wire, gate("gate", "core.interrupt", **asked))

    refused = answered(acme, run_id, **{"answer": "accept", "extra.ticket": "x"})
    went_on(answered(acme, run_id, **{"answer": "accept", "extra.ticket": "T-17"}))

    assert refused.status_code == 400
    assert "ticket" in refused.text
    assert wire.finished(run_id)["status"] == "completed"


# Unsure supervisors, in each way that a host can ask


def doubtful(wire: Wire) -> str:
    """Start a run whose supervisor's first decision waits for a person."""
    decision = next_worker("conformance-noop", confidence=0.3)
    run_id = wire.create(wire.register(supervised(decision, DONE)))
    wire.events_until(run_id, "interrupt.requested")
    return run_id


def test_a_supervisor_s_decision_is_shown_with_its_confidence(acme: Person, wire: Wire) -> None:
    run_id = doubtful(wire)
    [node_id] = [item["nodeId"] for item in inbox(wire, runId=run_id)]

    text = acme.page(f"/inbox/{run_id}/{node_id}").text
    went_on(answered(acme, run_id, node_id, answer="accept"))

    assert "30 %" in text
    assert "(needs 50 %)" in text
    assert "The supervisor's decision is executed." in text
    assert wire.finished(run_id)["status"] == "completed"


@pytest.mark.parametrize(
    ("kind", "fields", "value"),
    [
        ("x-host-wopr-second-look", {"answer": "accept"}, {"action": "accept"}),
        (
            "x-host-wopr-second-look",
            {"answer": "value", "value": '{"kind": "terminate", "reason": "goal-reached"}'},
            {"kind": "terminate", "reason": "goal-reached"},
        ),
        (
            "clarification",
            {"answer": "answers", "answer.decision": "accept"},
            {"answers": {"decision": "accept"}},
        ),
    ],
    ids=["vendor", "vendor, decided otherwise", "clarification"],
)
def test_the_host_s_custom_kind_is_found_by_its_name_and_answered(
    new_host: Callable[..., ServedHost],
    signed_in: SignedIn,
    kind: str,
    fields: dict[str, str],
    value: Json,
) -> None:
    host = new_host("--conformance", WOPR_CONFIDENCE_INTERRUPT_KIND=kind)
    person = signed_in(ACME, host)
    with Wire(host.url, ACME) as wire:
        run_id = doubtful(wire)
        [item] = inbox(wire, runId=run_id)

        page = person.page(f"/inbox/{run_id}/{item['nodeId']}")
        listed = person.page(f"/inbox?kind={kind}")
        others = person.page("/inbox?kind=custom")
        went_on(answered(person, run_id, item["nodeId"], **fields))

        assert item["kind"] == kind
        assert "30%" in page.text
        assert "waits for custom" not in page.text
        assert any(run_id in link for link in listed.links)
        assert listed.all("option", value=kind) == [{"value": kind, "selected": ""}]
        assert not any(run_id in link for link in others.links)
        assert resolved(wire, run_id) == value
        assert wire.finished(run_id)["status"] == "completed"
