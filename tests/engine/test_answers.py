from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wopr.engine.answers import (
    Answer,
    AnswerRefused,
    Approval,
    Clarified,
    Delivered,
    Governed,
    Ratified,
    Turn,
    action_of,
    is_question,
    is_vote,
    read_answer,
    tally,
)
from wopr.engine.asking import effects, question
from wopr.engine.interrupts import GOVERNANCE, Ballot, Interrupt, waiting_status
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import Refine

ACTIONS = ["accept", "reject", "refine", "edit-accept", "ask"]
FEEDBACK = {"scope": "whole", "text": "shorter"}
EVENT = {"eventType": "order.paid", "correlation": {"orderId": "o1", "lines": [1, {"n": True}]}}

quick = settings(max_examples=200, deadline=None)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "action decision answers q1 operation turn content eventPayload orderId feedback "
                "refineFeedback editedArtifactData voter id answer rejected ratified".split()
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def wait(kind: str, data: JsonObject, **more: Json) -> Interrupt:
    """A pending wait of this kind."""
    return Interrupt(
        interrupt_id="int-gate:0",
        kind=kind,
        key="gate:0",
        requested_at=0,
        suspended_event="e1",
        status=waiting_status(kind),
        data=data,
        **more,
    )


def gate(actions: list[str] | None = None, **data: Json) -> Interrupt:
    base = {"artifactId": "a", "artifactType": "draft", "title": "Fine?"}
    return wait("approval", base | {"actions": ACTIONS if actions is None else actions} | data)


def questions(*asked: JsonObject) -> Interrupt:
    return wait("clarification", {"questions": list(asked)})


def conversation(**data: Json) -> Interrupt:
    return wait("conversation.exchange", {"conversationId": "c", "prompt": "So?"} | data)


def unsure(decision: Json = None) -> Interrupt:
    data = {"agentId": "local.acme.a", "threshold": 0.7, "observed": 0.5, "decision": decision}
    return wait("low-confidence", data)


def governed(**more: Json) -> Interrupt:
    found = gate(["accept", "reject"])
    return wait("approval", found.data | {GOVERNANCE: {"requiredRole": "admin"}}, **more)


def refusal(interrupt: Interrupt, value: Json) -> AnswerRefused:
    with pytest.raises(AnswerRefused) as caught:
        read_answer(interrupt, value)
    return caught.value


def answer_or_refusal(interrupt: Interrupt, value: Json) -> Answer | AnswerRefused:
    try:
        return read_answer(interrupt, value)
    except AnswerRefused as refused:
        return refused


EVERY_KIND = [
    gate(),
    gate(requiredApprovals=3),
    governed(),
    questions({"id": "q1", "question": "Colour?"}),
    wait("external-event", EVENT),
    wait("custom", {"customKind": "mine"}),
    conversation(),
    unsure({"kind": "terminate"}),
]


# Every kind


@quick
@given(st.sampled_from(EVERY_KIND), json_values)
def test_every_value_is_read_as_an_answer_or_refused_with_its_field(
    interrupt: Interrupt, value: Json
) -> None:
    read = answer_or_refusal(interrupt, value)

    if isinstance(read, AnswerRefused):
        assert read.field.startswith("resumeValue")
        assert str(read)
    else:
        assert isinstance(read, Approval | Governed | Clarified | Delivered | Ratified | Turn)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("approval", "waiting-approval"),
        ("clarification", "waiting-input"),
        ("external-event", "waiting-external"),
        ("low-confidence", "waiting-approval"),
        ("conversation.exchange", "waiting-approval"),
        ("custom", "waiting-input"),
        ("something-new", "waiting-input"),
    ],
)
def test_each_kind_has_its_status(kind: str, status: str) -> None:
    assert waiting_status(kind) == status


@pytest.mark.parametrize("interrupt", EVERY_KIND, ids=lambda each: f"{each.kind}")
def test_every_wait_says_in_words_what_it_asks_and_what_each_answer_does(
    interrupt: Interrupt,
) -> None:
    assert question(interrupt.kind, interrupt.data)
    told = effects(interrupt.kind, interrupt.data)
    assert told
    assert all(told.values())


def test_a_value_that_fails_the_resume_schema_is_refused_with_the_place_of_the_fault() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    interrupt = wait("custom", {"customKind": "count"}, resume_schema=schema)

    assert read_answer(interrupt, {"n": 1}) == Delivered({"n": 1})
    assert refusal(interrupt, {"n": "one"}).field == "resumeValue.n"
    assert refusal(interrupt, {}).code == "validation_error"


def test_a_schema_never_makes_the_host_fetch_another_document() -> None:
    schema = {"$ref": "http://127.0.0.1:9/schema.json"}

    refused = refusal(wait("custom", {"customKind": "x"}, resume_schema=schema), 1)

    assert "not followed" in str(refused)


# Approvals


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ({"action": "accept"}, "accept"),
        ({"action": "accept", "feedback": "good", "decidedAt": "2026-01-01"}, "accept"),
        ({"action": "reject", "feedback": "bad"}, "reject"),
        ({"action": "refine", "refineFeedback": FEEDBACK}, "refine"),
        ({"action": "edit-accept", "editedArtifactData": None}, "edit-accept"),
        ({"action": "ask", "question": "Why?"}, "ask"),
        ({"decision": "approved"}, "accept"),
        ({"decision": "rejected"}, "reject"),
        ({"decision": "rejected", "feedback": "shorter"}, "refine"),
    ],
)
def test_each_form_of_an_approval_is_read(value: Json, action: str) -> None:
    answer = read_answer(gate(), value)

    assert isinstance(answer, Approval)
    assert action_of(answer.resume) == action


def test_a_legacy_rejection_with_feedback_refines_the_whole() -> None:
    answer = read_answer(gate(), {"decision": "rejected", "feedback": "shorter"})

    assert isinstance(answer, Approval)
    assert isinstance(answer.resume, Refine)
    assert answer.resume.refine_feedback.scope == "whole"
    assert answer.resume.refine_feedback.text == "shorter"


@pytest.mark.parametrize(
    "value",
    [
        {"action": "refine"},
        {"action": "refine", "refineFeedback": {}},
        {"action": "refine", "refineFeedback": {"scope": "page"}},
        {"action": "edit-accept"},
        {"action": "edit", "editedArtifactData": 1},
        {"action": "maybe"},
        {"action": "timeout"},
        {"decision": "timeout"},
        {"decision": "cancelled"},
        {},
        None,
        "accept",
        [],
    ],
)
def test_what_is_no_approval_is_refused(value: Json) -> None:
    assert refusal(gate(), value).code == "validation_error"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_the_gate_does_not_offer_is_refused(action: str) -> None:
    value = {"action": action, "refineFeedback": FEEDBACK, "editedArtifactData": 1}
    others = [offered for offered in ACTIONS if offered != action]

    assert isinstance(read_answer(gate([action]), value), Approval)
    assert refusal(gate(others), value).field == "resumeValue.action"


def test_nobody_edits_alone_what_several_have_to_approve() -> None:
    value = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}

    assert refusal(gate(requiredApprovals=2), value).field == "resumeValue.action"
    assert "edit-accept" not in effects("approval", gate(requiredApprovals=2).data)


@pytest.mark.parametrize(
    ("value", "votes", "asks"),
    [
        ({"action": "accept"}, True, False),
        ({"action": "reject"}, True, False),
        ({"action": "refine", "refineFeedback": FEEDBACK}, False, False),
        ({"action": "edit-accept", "editedArtifactData": 1}, False, False),
        ({"action": "ask"}, False, True),
    ],
)
def test_only_accept_and_reject_are_votes_and_only_ask_is_a_question(
    value: Json, votes: bool, asks: bool
) -> None:
    answer = read_answer(gate(), value)

    assert isinstance(answer, Approval)
    assert is_vote(answer.resume) is votes
    assert is_question(answer.resume) is asks


# Quorum


def voted(interrupt: Interrupt, votes: list[tuple[str, bool]]) -> Interrupt:
    for voter, is_grant in votes:
        interrupt = interrupt.with_ballot(Ballot(voter=voter, is_grant=is_grant))
    return interrupt


all_votes = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=12)


@quick
@given(all_votes)
def test_a_voter_has_one_vote_and_it_is_the_last_one(votes: list[tuple[str, bool]]) -> None:
    interrupt = voted(gate(requiredApprovals=9), votes)

    assert {b.voter: b.is_grant for b in interrupt.ballots} == dict(votes)
    assert len(interrupt.ballots) == len(dict(votes))
    assert interrupt.grants == sum(dict(votes).values())
    assert interrupt.rejections == len(dict(votes)) - interrupt.grants


@quick
@given(st.integers(1, 6), st.sampled_from(["single-veto", "majority"]), all_votes)
def test_a_gate_is_decided_by_enough_distinct_votes_and_by_nothing_less(
    required: int, policy: str, votes: list[tuple[str, bool]]
) -> None:
    last = dict(votes)
    yes, no = sum(last.values()), len(last) - sum(last.values())
    enough_against = no >= 1 if policy == "single-veto" else no > required / 2

    counted = tally(voted(gate(requiredApprovals=required, rejectionPolicy=policy), votes))

    assert counted.is_decided is (enough_against or yes >= required)
    assert counted.is_granted is not enough_against
    assert counted.votes == (no if enough_against else yes)
    assert counted.required == required


# Governance


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"decision": "granted"}, Governed(True, "", "")),
        ({"decision": "rejected", "reason": "risk"}, Governed(False, "risk", "")),
    ],
)
def test_a_governance_gate_takes_granted_and_rejected(value: Json, expected: Governed) -> None:
    assert read_answer(governed(), value) == expected


@pytest.mark.parametrize(
    "value", [None, {}, {"action": "accept"}, {"decision": "approved"}, {"decision": 1}]
)
def test_a_malformed_governance_answer_has_the_code_of_its_own(value: Json) -> None:
    assert refusal(governed(), value).code == "INVALID_RESUME_VALUE"


def test_a_governance_answer_that_fails_the_resume_schema_is_malformed_too() -> None:
    interrupt = governed(resume_schema={"required": ["reason"]})

    assert refusal(interrupt, {"decision": "granted"}).code == "INVALID_RESUME_VALUE"


# Clarifications


@pytest.mark.parametrize(
    "value",
    [{"answers": {"q1": "blue"}}, {"answers": [{"id": "q1", "answer": "blue"}]}],
    ids=["map", "list"],
)
def test_both_forms_of_answers_become_the_map(value: Json) -> None:
    interrupt = questions({"id": "q1", "question": "Colour?"})

    assert read_answer(interrupt, value) == Clarified({"q1": "blue"})


def test_every_question_must_be_answered() -> None:
    interrupt = questions({"id": "q1", "question": "One?"}, {"id": "q2", "question": "Two?"})

    refused = refusal(interrupt, {"answers": {"q1": "yes"}})

    assert refused.field == "resumeValue.answers.q2"
    assert "Two?" in str(refused)


def test_an_answer_must_satisfy_the_schema_of_its_question() -> None:
    interrupt = questions(
        {"id": "q1", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "q2", "question": "Why?"},
    )

    assert refusal(interrupt, {"answers": {"q1": 0, "q2": ""}}).field == "resumeValue.answers.q1"
    assert read_answer(interrupt, {"answers": {"q1": 2, "q2": [1]}}) == Clarified(
        {"q1": 2, "q2": [1]}
    )


# External events


def test_an_event_matches_when_it_has_every_key_of_the_correlation() -> None:
    event = EVENT["correlation"] | {"more": 1}  # type: ignore[operator]  # an object

    assert read_answer(wait("external-event", EVENT), event) == Delivered(event)


def test_an_event_may_come_wrapped_and_is_handed_on_bare() -> None:
    event = {"orderId": "o1", "lines": [1.0, {"n": True}]}

    assert read_answer(wait("external-event", EVENT), {"eventPayload": event}) == Delivered(event)


def test_a_flat_event_may_have_a_member_named_event_payload() -> None:
    data = {"eventType": "x", "correlation": {"a": 1}}

    assert read_answer(wait("external-event", data), {"a": 1, "eventPayload": "raw"}) == Delivered(
        {"a": 1, "eventPayload": "raw"}
    )


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"orderId": "o1"},
        {"orderId": "o2", "lines": [1, {"n": True}]},
        {"orderId": "o1", "lines": [1, {"n": 1}]},
        {"orderId": "o1", "lines": [True, {"n": True}]},
        {"orderId": "o1", "lines": [1]},
        {"orderId": "o1", "lines": [1, {"n": True, "m": 1}]},
        {"eventPayload": {"orderId": "o2", "lines": [1, {"n": True}]}},
    ],
)
def test_an_event_that_differs_anywhere_is_a_mismatch(event: Json) -> None:
    refused = refusal(wait("external-event", EVENT), event)

    assert refused.code == "correlation_mismatch"


@pytest.mark.parametrize("value", [None, "paid", 1, []])
def test_an_event_is_an_object(value: Json) -> None:
    assert refusal(wait("external-event", EVENT), value).code == "validation_error"


# Decisions of agents


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"action": "accept"}, Ratified({"kind": "a"})),
        ({"ratified": True}, Ratified({"kind": "a"})),
        ({"action": "reject"}, Ratified({"kind": "a"}, is_rejection=True)),
        ({"rejected": True}, Ratified({"kind": "a"}, is_rejection=True)),
        ({"decision": {"action": "sell"}}, Ratified({"action": "sell"})),
        ({"kind": "terminate"}, Ratified({"kind": "terminate"})),
        ("stop", Ratified("stop")),
    ],
)
def test_an_agents_decision_stands_falls_or_is_replaced(value: Json, expected: Ratified) -> None:
    assert read_answer(unsure({"kind": "a"}), value) == expected


def test_an_unknown_action_is_no_decision() -> None:
    assert refusal(unsure({"kind": "a"}), {"action": "maybe"}).field == "resumeValue.action"


# Conversations


def test_a_turn_keeps_the_conversation_open_and_a_close_ends_it() -> None:
    said = read_answer(conversation(), {"operation": "exchange", "turn": {"content": "yes"}})
    closed = read_answer(conversation(), {"operation": "close", "outcome": {"ok": True}})

    assert said == Turn("yes", is_close=False, outcome="yes")
    assert closed == Turn(None, is_close=True, outcome={"ok": True})


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"operation": "open"},
        {"operation": "exchange"},
        {"operation": "exchange", "turn": {}},
    ],
)
def test_what_is_no_turn_is_refused(value: Json) -> None:
    assert refusal(conversation(), value).field.startswith("resumeValue.")


def test_a_turn_must_satisfy_the_schema_of_the_conversation() -> None:
    interrupt = conversation(outcomeSchema={"type": "string"})

    refused = refusal(interrupt, {"operation": "exchange", "turn": {"content": 1}})

    assert refused.field == "resumeValue.turn.content"
