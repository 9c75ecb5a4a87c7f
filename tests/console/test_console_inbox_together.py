"""Several who answer one wait, and many waits that are answered at once."""

from __future__ import annotations

from tests.console.client import Markup, Person
from tests.console.conftest import SignedIn
from tests.console.inbox import ACTIONS, answered, pick, resolved, unsure, went_on
from tests.wire.client import Wire
from tests.wire.definitions import node
from tests.wire.host import ACME, LIVE, OPERATOR, REVIEWER
from tests.wire.waiting import (
    ACCEPT,
    gate,
    inbox,
    name_of,
    taken,
    until_waiting,
    waiting,
)

# Several who answer


def test_votes_are_counted_and_their_voters_named(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting(wire, gate(requiredApprovals=2))

    went_on(answered(acme, run_id, answer="accept"), "voted")
    mine = acme.page(f"/inbox/{run_id}/gate")
    page = signed_in(OPERATOR).page(f"/inbox/{run_id}/gate")
    went_on(answered(signed_in(LIVE), run_id, answer="accept"))

    assert "1 of 2" in page.text
    assert name_of(ACME) in page.text
    assert "You have voted" in mine.text
    assert "You have voted" not in page.text
    assert wire.finished(run_id)["status"] == "completed"


def test_an_answer_that_lost_the_race_says_who_won_and_with_what(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting(wire, gate())
    slow = signed_in(REVIEWER)
    form = {"interruptId": "int-gate:0", "answer": "reject", "reason": "I have doubts"}
    went_on(answered(acme, run_id, answer="accept", reason="fine with me"))

    late = slow.post(f"/inbox/{run_id}/gate", **form)

    assert late.status_code == 409
    text = Markup(late.text).text
    assert "Your answer came too late" in text
    assert f"{name_of(ACME)} was faster and accepted" in text
    assert "fine with me" in text
    assert "I have doubts" in text


def test_an_answer_to_work_that_was_done_again_is_not_taken_for_the_new(
    acme: Person, wire: Wire
) -> None:
    run_id = waiting(wire, node("draft"), gate(actions=ACTIONS))
    taken(wire, run_id, "gate", {"action": "refine", "refineFeedback": {"scope": "whole"}})
    until_waiting(wire, run_id)

    late = acme.post(f"/inbox/{run_id}/gate", interruptId="int-gate:0", answer="accept")

    assert late.status_code == 409
    assert "sent it back" in late.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_wait_that_is_over_tells_how_it_ended(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())
    taken(wire, run_id, "gate", ACCEPT)

    text = acme.page(f"/inbox/{run_id}/gate").text

    assert "accepted" in text
    assert "It is over" in text


def test_a_node_that_is_not_there_is_not_found(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())

    assert acme.get(f"/inbox/{run_id}/nowhere").status_code == 404


# Many at once


def test_many_are_accepted_with_one_reason_and_each_outcome_is_told(
    acme: Person, wire: Wire
) -> None:
    plain, settled = waiting(wire, gate()), waiting(wire, gate())
    doubt, quorum = unsure(wire), waiting(wire, gate(requiredApprovals=2))
    asked = waiting(
        wire,
        gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Which?"}]),
    )
    taken(wire, settled, "gate", {"action": "reject", "feedback": "too late for this"})
    interrupt = inbox(wire, runId=doubt)[0]["interruptId"]
    picks = pick(plain) | pick(settled) | pick(quorum) | pick(doubt, "actor", interrupt)
    picks |= pick(asked, "ask", "int-ask:0")

    answer = acme.post("/inbox/batch", answer="accept", reason="all fine", **picks)

    assert answer.status_code == 200
    text = Markup(answer.text).text
    assert "2 accepted, 3 otherwise" in text
    assert "was faster and rejected: too late for this" in text
    assert "your vote is counted" in text
    assert "needs an answer of its own" in text
    assert resolved(wire, plain) == {"action": "accept", "feedback": "all fine"}
    assert wire.finished(doubt)["status"] == "completed"
    assert wire.snapshot(asked)["status"] == "waiting-input"


def test_many_are_rejected(acme: Person, wire: Wire) -> None:
    runs = [waiting(wire, gate()) for _ in range(2)]

    acme.post("/inbox/batch", answer="reject", **pick(runs[0]), **pick(runs[1]))

    assert [wire.finished(run_id)["status"] for run_id in runs] == ["failed", "failed"]


def test_nothing_chosen_or_no_answer_is_refused(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())

    nothing = acme.post("/inbox/batch", answer="accept")
    no_answer = acme.post("/inbox/batch", answer="maybe", **pick(run_id))

    assert (nothing.status_code, no_answer.status_code) == (400, 400)
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_another_tenant_s_wait_is_not_answered_among_many(globex: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate(title="acme alone"))

    answer = globex.post("/inbox/batch", answer="accept", **pick(run_id))

    assert "acme alone" not in answer.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"
