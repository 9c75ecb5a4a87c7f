from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME, LIVE, OPERATOR, REVIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    accepted,
    answer,
    events,
    gate,
    inbox,
    payload,
    principal_of,
    refused,
    waiting_run,
)
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

TYPE = "core.openwop.governance.approvalGate"
GRANT = {"decision": "granted"}
DENY = {"decision": "rejected", "reason": "too risky"}


def governed(**config: Json) -> JsonObject:
    return gate("gate", TYPE, **({"requiredRole": "reviewer"} | config))


def test_the_request_is_an_approval_without_the_older_event(acme: Wire) -> None:
    run_id = waiting_run(acme, governed())

    requested = payload(acme, run_id, "interrupt.requested")

    assert requested["kind"] == "approval"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    assert not events(acme, run_id, "approval.requested")


def test_a_principal_with_the_role_grants_it(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, governed())

    assert accepted(connect(REVIEWER), run_id, "gate", GRANT) == "completed"

    assert payload(acme, run_id, "approval.granted") == {
        "gateId": "gate",
        "principal": principal_of(REVIEWER),
        "quorumProgress": {"granted": 1, "required": 1},
    }
    assert payload(acme, run_id, "interrupt.resolved")["resumeValue"] == GRANT


def test_a_principal_with_the_scope_grants_it(acme: Wire, connect: Connect) -> None:
    config = {"requiredScope": "audit:read"}
    run_id = waiting_run(acme, gate("gate", TYPE, **config))

    assert refused(connect(REVIEWER), run_id, "gate", GRANT) == (403, "forbidden")
    assert accepted(connect(OPERATOR), run_id, "gate", GRANT) == "completed"


@pytest.mark.parametrize("value", [GRANT, DENY])
def test_an_unentitled_answer_is_refused_and_audited_and_the_gate_stays_closed(
    acme: Wire, connect: Connect, value: Json
) -> None:
    run_id = waiting_run(acme, governed())

    response = answer(connect(OPERATOR), run_id, "gate", value)

    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    denied = payload(acme, run_id, "authorization.decided")
    assert (denied["principal"], denied["allowed"]) == (principal_of(OPERATOR), False)
    assert denied["resource"] == f"{run_id}/gate"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"
    assert len(inbox(acme, runId=run_id)) == 1


@pytest.mark.parametrize(
    "value", [None, {}, ACCEPT, {"decision": "approved"}, {"decision": "granted", "x": 1}]
)
def test_an_invalid_decision_has_its_own_code(acme: Wire, connect: Connect, value: Json) -> None:
    run_id = waiting_run(acme, governed())

    assert refused(connect(REVIEWER), run_id, "gate", value) == (400, "INVALID_RESUME_VALUE")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_the_resume_schema_of_the_gate_applies(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, governed(resumeSchema={"required": ["reason"]}))

    assert refused(connect(REVIEWER), run_id, "gate", GRANT) == (400, "INVALID_RESUME_VALUE")
    assert accepted(connect(REVIEWER), run_id, "gate", GRANT | {"reason": "fine"}) == "completed"


def test_a_quorum_needs_that_many_principals(acme: Wire) -> None:
    run_id = waiting_run(acme, governed(requiredRole="admin", quorum=2))

    statuses = [accepted(acme, run_id, "gate", GRANT | {"voter": voter}) for voter in "aab"]

    assert statuses == ["waiting-approval", "waiting-approval", "completed"]
    progress = [e["payload"]["quorumProgress"] for e in events(acme, run_id, "approval.granted")]
    assert [each["granted"] for each in progress] == [1, 1, 2]


def test_a_rejection_sends_the_work_back_with_its_reason(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, node("work"), governed())

    status = accepted(connect(REVIEWER), run_id, "gate", DENY)

    assert status == "waiting-approval"
    assert payload(acme, run_id, "approval.rejected") == {
        "gateId": "gate",
        "principal": principal_of(REVIEWER),
        "reason": "too risky",
    }
    assert [e["nodeId"] for e in events(acme, run_id, "node.started")] == [
        "work",
        "gate",
        "work",
        "gate",
    ]
    assert accepted(connect(REVIEWER), run_id, "gate", GRANT) == "completed"


# Overrides


@pytest.mark.parametrize(("bypasses", "status"), [(True, "completed"), (False, "waiting-approval")])
def test_an_override_is_logged_and_bypasses_the_quorum_only_where_allowed(
    acme: Wire, connect: Connect, bypasses: bool, status: str
) -> None:
    config = {"quorum": 2, "override": {"requiredRole": "operator", "audited": True}}
    run_id = waiting_run(acme, governed(overrideBypassesQuorum=bypasses, **config))

    after = accepted(connect(OPERATOR), run_id, "gate", GRANT | {"reason": "on call"})

    assert after == status
    assert payload(acme, run_id, "approval.overridden") == {
        "gateId": "gate",
        "principal": principal_of(OPERATOR),
        "reason": "on call",
    }
    if not bypasses:
        assert accepted(connect(REVIEWER), run_id, "gate", GRANT) == "completed"


def test_an_override_requires_a_reason(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, governed(override={"requiredRole": "operator"}))

    assert refused(connect(OPERATOR), run_id, "gate", GRANT) == (400, "INVALID_RESUME_VALUE")
    assert not events(acme, run_id, "approval.overridden")


def test_an_override_opens_and_does_not_reject(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, governed(override={"requiredRole": "operator"}))

    assert refused(connect(OPERATOR), run_id, "gate", DENY) == (403, "forbidden")


def test_no_token_opens_a_governance_gate(acme: Wire, live: Wire, host: ServedHost) -> None:
    run_id = waiting_run(acme, governed())

    assert "interruptToken" not in acme.snapshot(run_id)["interrupt"]


def test_the_inbox_shows_the_text_of_this_gate(acme: Wire) -> None:
    run_id = waiting_run(acme, governed())

    assert inbox(acme, runId=run_id)[0]["answers"].keys() == {"granted", "rejected"}


@pytest.mark.parametrize(
    "config", [{}, {"quorum": 0, "requiredRole": "a"}, {"requiredRole": "a", "surprise": 1}]
)
def test_a_gate_that_entitles_no_one_is_refused(acme: Wire, config: dict[str, Json]) -> None:
    response = acme.post("/v1/workflows", workflow([gate("gate", TYPE, **config)]))

    assert response.status_code == 400


def test_every_vote_names_the_key_that_gave_it(acme: Wire, live: Wire) -> None:
    run_id = waiting_run(live, governed(requiredRole="admin", quorum=2))

    accepted(live, run_id, "gate", GRANT | {"voter": "someone-else"})
    accepted(acme, run_id, "gate", GRANT)

    voters = [e["payload"]["principal"] for e in events(acme, run_id, "approval.granted")]
    assert voters == [principal_of(LIVE), principal_of(ACME)]
