from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import node
from tests.support.host import ACME, LIVE, OPERATOR, REVIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    REFINE,
    REJECT,
    accepted,
    by_token,
    events,
    gate,
    inbox,
    payload,
    principal_of,
    refused,
    signed,
    waiting_run,
)
from tests.wire.conftest import Connect

pytestmark = pytest.mark.both_stores

ALL = ["accept", "reject", "refine", "edit-accept", "ask"]


def vote(wire: Wire, run_id: str, voter: str, value: dict[str, str] = ACCEPT) -> str:
    return accepted(wire, run_id, "gate", value | {"voter": voter})


# The fixture: three approvals, majority


def test_the_third_distinct_accept_completes_the_gate(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-quorum")

    statuses = [vote(fixtures, run_id, voter) for voter in "abc"]

    assert statuses == ["waiting-approval", "waiting-approval", "completed"]
    received = payload(fixtures, run_id, "approval.received")
    assert (received["action"], received["decidedBy"]) == ("accept", "quorum:3-of-3")


def test_rejections_of_more_than_half_end_it(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-quorum")

    statuses = [vote(fixtures, run_id, voter, REJECT) for voter in "ab"]

    assert statuses == ["waiting-approval", "failed"]
    assert fixtures.snapshot(run_id)["error"]["code"] == "interrupt_rejected"
    assert payload(fixtures, run_id, "approval.received")["decidedBy"] == "quorum:2-of-3"


def test_a_second_vote_of_the_same_voter_replaces_the_first(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-quorum")

    accepts = [vote(fixtures, run_id, "a") for _ in range(4)]
    changed = vote(fixtures, run_id, "a", REJECT)
    others = [vote(fixtures, run_id, voter) for voter in "bc"]
    back = vote(fixtures, run_id, "a")

    assert accepts == ["waiting-approval"] * 4
    assert [changed, *others] == ["waiting-approval"] * 3
    assert back == "completed"


def test_a_voter_can_change_to_a_rejection_that_ends_it(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-quorum")
    vote(fixtures, run_id, "a")
    vote(fixtures, run_id, "b", REJECT)

    assert vote(fixtures, run_id, "a", REJECT) == "failed"


def test_every_vote_is_logged_with_the_progress_of_the_gate(fixtures: Wire) -> None:
    run_id = fixtures.create("conformance-interrupt-quorum")
    vote(fixtures, run_id, "a")
    vote(fixtures, run_id, "a")
    vote(fixtures, run_id, "b")
    vote(fixtures, run_id, "c", REJECT | {"feedback": "too soon"})

    granted = [event["payload"] for event in events(fixtures, run_id, "approval.granted")]
    rejected = payload(fixtures, run_id, "approval.rejected")

    me = principal_of(ACME)
    assert [g["principal"] for g in granted] == [f"{me}#a", f"{me}#a", f"{me}#b"]
    assert [g["quorumProgress"]["granted"] for g in granted] == [1, 1, 2]
    assert all(g["quorumProgress"]["required"] == 3 for g in granted)
    assert rejected == {"gateId": "gate", "principal": f"{me}#c", "reason": "too soon"}


# The voters


def test_a_person_s_key_has_one_vote_whatever_voter_it_names(live: Wire) -> None:
    run_id = waiting_run(live, gate(requiredApprovals=2))

    statuses = [vote(live, run_id, voter) for voter in "abc"]

    assert statuses == ["waiting-approval"] * 3
    assert {e["payload"]["principal"] for e in events(live, run_id, "approval.granted")} == {
        principal_of(LIVE)
    }


def test_a_test_key_has_one_vote_on_a_run_that_a_live_key_started(acme: Wire, live: Wire) -> None:
    run_id = waiting_run(live, gate(requiredApprovals=2))

    statuses = [vote(acme, run_id, voter) for voter in "abc"]

    assert statuses == ["waiting-approval"] * 3
    assert {e["payload"]["principal"] for e in events(acme, run_id, "approval.granted")} == {
        principal_of(ACME)
    }


def test_a_test_key_has_one_vote_on_a_host_that_is_not_under_test(
    new_host: Callable[..., ServedHost], connect: Connect
) -> None:
    wire = connect(ACME, new_host())
    run_id = waiting_run(wire, gate(requiredApprovals=2))

    statuses = [vote(wire, run_id, voter) for voter in "abc"]

    assert statuses == ["waiting-approval"] * 3


def test_a_named_voter_is_no_approver_outside_of_tests(
    new_host: Callable[..., ServedHost], connect: Connect
) -> None:
    wire = connect(ACME, new_host())
    run_id = waiting_run(wire, gate(requiredApprovals=1, approversList=["ada"]))

    assert refused(wire, run_id, "gate", ACCEPT | {"voter": "ada"}) == (403, "forbidden")


def test_different_keys_are_different_voters(connect: Connect, live: Wire) -> None:
    run_id = waiting_run(live, gate(requiredApprovals=3))

    statuses = [
        accepted(connect(key), run_id, "gate", ACCEPT) for key in (LIVE, LIVE, OPERATOR, REVIEWER)
    ]

    assert statuses == ["waiting-approval"] * 3 + ["completed"]


def test_a_voter_who_is_not_an_approver_has_no_vote(connect: Connect, live: Wire) -> None:
    approvers = [principal_of(OPERATOR), principal_of(REVIEWER)]
    run_id = waiting_run(live, gate(requiredApprovals=2, approversList=approvers))

    assert refused(live, run_id, "gate", ACCEPT) == (403, "forbidden")

    assert accepted(connect(OPERATOR), run_id, "gate", ACCEPT) == "waiting-approval"
    assert accepted(connect(REVIEWER), run_id, "gate", ACCEPT) == "completed"
    assert len(events(live, run_id, "approval.granted")) == 2


def test_a_token_has_no_vote_because_its_holder_may_have_one_already(
    live: Wire, host: ServedHost
) -> None:
    run_id = waiting_run(live, gate(requiredApprovals=2))
    accepted(live, run_id, "gate", ACCEPT)
    later = round(time.time() * 1000) + 60_000
    token = signed(host.data_dir, tenant="acme", runId=run_id, expiresAt=later)

    response = by_token(live, token, ACCEPT)

    assert "interruptToken" not in live.snapshot(run_id)["interrupt"]
    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    assert live.snapshot(run_id)["status"] == "waiting-approval"


# The rules


def test_a_single_rejection_ends_a_gate_without_another_policy(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(requiredApprovals=3))
    vote(acme, run_id, "a")
    vote(acme, run_id, "b")

    assert vote(acme, run_id, "c", REJECT) == "failed"


@pytest.mark.parametrize(("required", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half_of_what_is_required(
    acme: Wire, required: int, needed: int
) -> None:
    run_id = waiting_run(acme, gate(requiredApprovals=required, rejectionPolicy="majority"))

    statuses = [vote(acme, run_id, f"v{each}", REJECT) for each in range(needed)]

    assert statuses == ["waiting-approval"] * (needed - 1) + ["failed"]


def test_a_refinement_clears_all_votes(acme: Wire) -> None:
    run_id = waiting_run(acme, node("work"), gate(requiredApprovals=2, actions=ALL))
    vote(acme, run_id, "a")

    refined = vote(acme, run_id, "b", REFINE)  # type: ignore[arg-type]  # with its feedback
    once = vote(acme, run_id, "b")
    twice = vote(acme, run_id, "a")

    assert [refined, once] == ["waiting-approval"] * 2
    assert twice == "completed"
    granted = [
        e["payload"]["quorumProgress"]["granted"] for e in events(acme, run_id, "approval.granted")
    ]
    assert granted == [1, 1, 2]


def test_one_person_cannot_edit_what_several_must_approve(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(requiredApprovals=2, actions=ALL))
    edit = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}

    assert refused(acme, run_id, "gate", edit) == (400, "validation_error")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_the_inbox_shows_the_progress_of_a_vote(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(requiredApprovals=4, rejectionPolicy="majority"))
    before = inbox(acme, runId=run_id)[0]

    vote(acme, run_id, "a")
    vote(acme, run_id, "b")
    vote(acme, run_id, "c", REJECT)

    [after] = inbox(acme, runId=run_id)
    assert before["votes"] == {"granted": 0, "rejected": 0, "required": 4}
    assert after["votes"] == {"granted": 2, "rejected": 1, "required": 4}
    assert after["requestedAt"] == before["requestedAt"]
