from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.waits import EVENT, conversation, gate, quick, refusal, wait
from wopr.engine.interrupts import (
    GOVERNANCE,
    Interrupt,
    answer_effects,
    question_text,
    waiting_status,
)
from wopr.engine.resume_values import (
    ApprovalValue,
    ClarificationValue,
    DeliveredValue,
    GovernanceValue,
    InvalidResumeValue,
    Ratification,
    ResumeValue,
    TurnValue,
    read_resume_value,
)
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.json_schema.validation import violations_of

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


def questions(*asked: JsonObject) -> Interrupt:
    return wait("clarification", {"questions": list(asked)})


def unsure(decision: Json = None) -> Interrupt:
    data = {"agentId": "local.acme.a", "threshold": 0.7, "observed": 0.5, "decision": decision}
    return wait("low-confidence", data)


def governed(**more: Json) -> Interrupt:
    found = gate(["accept", "reject"])
    return wait("approval", found.data | {GOVERNANCE: {"requiredRole": "admin"}}, **more)


def answer_or_refusal(interrupt: Interrupt, value: Json) -> ResumeValue | InvalidResumeValue:
    try:
        return read_resume_value(interrupt, value)
    except InvalidResumeValue as refused:
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
def test_any_value_is_parsed_as_an_answer_or_refused_with_its_field(
    interrupt: Interrupt, value: Json
) -> None:
    read = answer_or_refusal(interrupt, value)

    if isinstance(read, InvalidResumeValue):
        assert read.field.startswith("resumeValue")
        assert str(read)
    else:
        assert isinstance(
            read,
            ApprovalValue
            | GovernanceValue
            | ClarificationValue
            | DeliveredValue
            | Ratification
            | TurnValue,
        )


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
def test_every_wait_describes_its_request_and_the_effect_of_each_answer(
    interrupt: Interrupt,
) -> None:
    assert question_text(interrupt.kind, interrupt.data)
    told = answer_effects(interrupt.kind, interrupt.data)
    assert told
    assert all(told.values())


def test_a_value_that_fails_the_resume_schema_is_refused_with_the_place_of_the_fault() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    interrupt = wait("custom", {"customKind": "count"}, resume_schema=schema)

    assert read_resume_value(interrupt, {"n": 1}) == DeliveredValue({"n": 1})
    assert refusal(interrupt, {"n": "one"}).field == "resumeValue.n"
    assert refusal(interrupt, {}).code == "validation_error"


def test_a_schema_never_makes_the_host_fetch_another_document() -> None:
    schema = {"$ref": "http://127.0.0.1:9/schema.json"}

    [[_, message]] = violations_of(schema, None, 1)

    assert "not followed" in message


# Governance


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"decision": "granted"}, GovernanceValue(True, "", "")),
        ({"decision": "rejected", "reason": "risk"}, GovernanceValue(False, "risk", "")),
    ],
)
def test_a_governance_gate_accepts_granted_and_rejected(
    value: Json, expected: GovernanceValue
) -> None:
    assert read_resume_value(governed(), value) == expected


@pytest.mark.parametrize(
    "value", [None, {}, {"action": "accept"}, {"decision": "approved"}, {"decision": 1}]
)
def test_an_invalid_governance_answer_has_its_own_code(value: Json) -> None:
    assert refusal(governed(), value).code == "INVALID_RESUME_VALUE"


_FORMS: JsonObject = {
    "anyOf": [
        {"properties": {"action": {"enum": ["accept", "reject"]}}, "required": ["action"]},
        {
            "properties": {"decision": {"properties": {"refund": {"type": "boolean"}}}},
            "required": ["decision"],
        },
    ]
}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            {"decision": {"refund": "no"}},
            'resumeValue.decision.refund: "no" is not of type "boolean"',
        ),
        ({"action": "maybe"}, 'resumeValue.action: "maybe" is not one of "accept" or "reject"'),
        ({}, 'resumeValue: "action" is a required property, or "decision" is a required property'),
    ],
)
def test_a_value_that_matches_no_alternative_is_explained_by_the_nearest_one(
    value: Json, told: str
) -> None:
    refused = refusal(wait("custom", {"customKind": "x"}, resume_schema=_FORMS), value)

    assert str(refused) == told


def test_a_governance_answer_that_fails_the_resume_schema_is_invalid_too() -> None:
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

    assert read_resume_value(interrupt, value) == ClarificationValue({"q1": "blue"})


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
    assert read_resume_value(interrupt, {"answers": {"q1": 2, "q2": [1]}}) == ClarificationValue(
        {"q1": 2, "q2": [1]}
    )


# Decisions of agents


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"action": "accept"}, Ratification({"kind": "a"})),
        ({"ratified": True}, Ratification({"kind": "a"})),
        ({"action": "reject"}, Ratification({"kind": "a"}, is_rejection=True)),
        ({"rejected": True}, Ratification({"kind": "a"}, is_rejection=True)),
        ({"decision": {"action": "sell"}}, Ratification({"action": "sell"})),
        ({"kind": "terminate"}, Ratification({"kind": "terminate"})),
        ("stop", Ratification("stop")),
    ],
)
def test_an_agent_s_decision_is_accepted_rejected_or_replaced(
    value: Json, expected: Ratification
) -> None:
    assert read_resume_value(unsure({"kind": "a"}), value) == expected


def test_an_unknown_action_is_not_a_decision() -> None:
    assert refusal(unsure({"kind": "a"}), {"action": "maybe"}).field == "resumeValue.action"
