"""Several people who answer one wait, and several waits answered at once."""

from __future__ import annotations

from tests.console.conftest import SignedIn
from tests.console.inbox import ACTIONS, answered, pick, resolved, unsure, went_on
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import node
from tests.support.host import ACME, LIVE, OPERATOR, REVIEWER
from tests.support.interrupts import (
    ACCEPT,
    accepted,
    gate,
    inbox,
    principal_of,
    until_waiting,
    waiting_run,
)

# Several people


def test_votes_are_counted_and_their_voters_named(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting_run(wire, gate(requiredApprovals=2))

    went_on(answered(acme, run_id, answer="accept"), "voted")
    mine = acme.page(f"/inbox/{run_id}/gate")
    page = signed_in(OPERATOR).page(f"/inbox/{run_id}/gate")
    went_on(answered(signed_in(LIVE), run_id, answer="accept"))

    assert "1 of 2" in page.text
    assert principal_of(ACME) in page.text
    assert "You have voted" in mine.text
    assert "You have voted" not in page.text
    assert wire.finished(run_id)["status"] == "completed"


def test_a_late_answer_shows_the_winning_answer_and_its_author(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting_run(wire, gate())
    slow = signed_in(REVIEWER)
    form = {"interruptId": "int-gate:0", "answer": "reject", "reason": "I have doubts"}
    went_on(answered(acme, run_id, answer="accept", reason="fine with me"))

    late = slow.post(f"/inbox/{run_id}/gate", **form)

    assert late.status_code == 409
    text = Markup(late.text).text
    assert "Your answer was too late" in text
    assert f"{principal_of(ACME)} answered first: accepted" in text
    assert "fine with me" in text
    assert "I have doubts" in text


def test_an_answer_to_an_earlier_version_does_not_count_for_the_new_one(
    acme: Person, wire: Wire
) -> None:
    run_id = waiting_run(wire, node("draft"), gate(actions=ACTIONS))
    accepted(wire, run_id, "gate", {"action": "refine", "refineFeedback": {"scope": "whole"}})
    until_waiting(wire, run_id)

    late = acme.post(f"/inbox/{run_id}/gate", interruptId="int-gate:0", answer="accept")

    assert late.status_code == 409
    assert "sent it back" in late.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_closed_wait_shows_how_it_ended(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())
    accepted(wire, run_id, "gate", ACCEPT)

    text = acme.page(f"/inbox/{run_id}/gate").text

    assert "accepted" in text
    assert "This question is closed" in text


def test_a_node_that_does_not_exist_is_not_found(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())

    assert acme.get(f"/inbox/{run_id}/nowhere").status_code == 404


# Several waits


def test_several_waits_are_accepted_with_one_reason_and_each_outcome_is_shown(
    acme: Person, wire: Wire
) -> None:
    plain, settled = waiting_run(wire, gate()), waiting_run(wire, gate())
    doubt, quorum = unsure(wire), waiting_run(wire, gate(requiredApprovals=2))
    asked = waiting_run(
        wire,
        gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Which?"}]),
    )
    accepted(wire, settled, "gate", {"action": "reject", "feedback": "too late for this"})
    interrupt = inbox(wire, runId=doubt)[0]["interruptId"]
    picks = pick(plain) | pick(settled) | pick(quorum) | pick(doubt, "actor", interrupt)
    picks |= pick(asked, "ask", "int-ask:0")

    answer = acme.post("/inbox/batch", answer="accept", reason="all fine", **picks)

    assert answer.status_code == 200
    text = Markup(answer.text).text
    assert "2 accepted, 3 not accepted" in text
    assert "answered first: rejected: too late for this" in text
    assert "vote counted" in text
    assert "cannot be answered in a batch" in text
    assert resolved(wire, plain) == {"action": "accept", "feedback": "all fine"}
    assert wire.finished(doubt)["status"] == "completed"
    assert wire.snapshot(asked)["status"] == "waiting-input"


def test_several_waits_are_rejected(acme: Person, wire: Wire) -> None:
    runs = [waiting_run(wire, gate()) for _ in range(2)]

    acme.post("/inbox/batch", answer="reject", **pick(runs[0]), **pick(runs[1]))

    assert [wire.finished(run_id)["status"] for run_id in runs] == ["failed", "failed"]


def test_an_empty_selection_or_no_answer_is_refused(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())

    nothing = acme.post("/inbox/batch", answer="accept")
    no_answer = acme.post("/inbox/batch", answer="maybe", **pick(run_id))

    assert (nothing.status_code, no_answer.status_code) == (400, 400)
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_another_tenant_s_wait_in_a_selection_is_not_answered(globex: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate(title="acme alone"))

    answer = globex.post("/inbox/batch", answer="accept", **pick(run_id))

    assert "acme alone" not in answer.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"
