from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.waits import ACTIONS, gate, quick, refusal
from wopr.engine.interrupts import Ballot, Interrupt, answer_effects
from wopr.engine.resume_values import (
    ApprovalValue,
    action_of,
    is_question,
    is_vote,
    read_resume_value,
    tally,
)
from wopr.protocol.documents import Json
from wopr.protocol.interrupts import Refine

FEEDBACK = {"scope": "whole", "text": "shorter"}


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
def test_each_form_of_an_approval_is_parsed(value: Json, action: str) -> None:
    answer = read_resume_value(gate(), value)

    assert isinstance(answer, ApprovalValue)
    assert action_of(answer.resume) == action


def test_a_legacy_rejection_with_feedback_refines_the_whole() -> None:
    answer = read_resume_value(gate(), {"decision": "rejected", "feedback": "shorter"})

    assert isinstance(answer, ApprovalValue)
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
def test_an_invalid_approval_is_refused(value: Json) -> None:
    assert refusal(gate(), value).code == "validation_error"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_the_gate_does_not_offer_is_refused(action: str) -> None:
    value = {"action": action, "refineFeedback": FEEDBACK, "editedArtifactData": 1}
    others = [offered for offered in ACTIONS if offered != action]

    assert isinstance(read_resume_value(gate([action]), value), ApprovalValue)
    assert refusal(gate(others), value).field == "resumeValue.action"


def test_one_person_cannot_edit_what_several_must_approve() -> None:
    value = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}

    assert refusal(gate(requiredApprovals=2), value).field == "resumeValue.action"
    assert "edit-accept" not in answer_effects("approval", gate(requiredApprovals=2).data)


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
    answer = read_resume_value(gate(), value)

    assert isinstance(answer, ApprovalValue)
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
def test_each_voter_has_one_vote_and_the_last_one_counts(votes: list[tuple[str, bool]]) -> None:
    interrupt = voted(gate(requiredApprovals=9), votes)

    assert {b.voter: b.is_grant for b in interrupt.ballots} == dict(votes)
    assert len(interrupt.ballots) == len(dict(votes))
    assert interrupt.grants == sum(dict(votes).values())
    assert interrupt.rejections == len(dict(votes)) - interrupt.grants


@quick
@given(st.integers(1, 6), st.sampled_from(["single-veto", "majority"]), all_votes)
def test_a_gate_is_decided_by_enough_distinct_votes_only(
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
