from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import workflow
from tests.support.host import DEVELOPER, LIVE, OPERATOR, REVIEWER, VIEWER
from tests.support.interrupts import (
    ACCEPT,
    ALL,
    EDIT,
    REFINE,
    REJECT,
    accepted,
    answer,
    events,
    gate,
    payload,
    principal_of,
    refused,
    waiting_run,
)
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject


@pytest.mark.parametrize("key", [OPERATOR, REVIEWER, LIVE])
def test_a_key_with_the_scope_may_answer(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting_run(acme, gate())

    assert accepted(connect(key), run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize("key", [VIEWER, DEVELOPER])
def test_a_key_without_the_scope_may_not(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting_run(acme, gate())

    response = answer(connect(key), run_id, "gate", ACCEPT)

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "approvals:respond"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_without_a_key_no_answer_is_accepted(anonymous: Wire, acme: Wire) -> None:
    run_id = waiting_run(acme, gate())

    assert refused(anonymous, run_id, "gate", ACCEPT) == (401, "unauthenticated")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize(
    "config",
    [{"approversList": [principal_of(REVIEWER)]}, {"approverRoleRefs": ["reviewer"]}],
    ids=["by name", "by role"],
)
def test_only_those_named_by_a_gate_can_decide(
    connect: Connect, live: Wire, config: dict[str, Json]
) -> None:
    run_id = waiting_run(live, gate(actions=ALL, **config))

    for value in (ACCEPT, REJECT, REFINE, EDIT, {"action": "ask"}):
        assert refused(live, run_id, "gate", value) == (403, "forbidden")

    assert live.snapshot(run_id)["status"] == "waiting-approval"
    assert not events(live, run_id, "log.appended")
    assert accepted(connect(REVIEWER), run_id, "gate", ACCEPT) == "completed"
    assert payload(live, run_id, "approval.received")["decidedBy"] == principal_of(REVIEWER)


def test_a_list_and_a_role_both_entitle(connect: Connect, live: Wire) -> None:
    config: JsonObject = {"approversList": [principal_of(LIVE)], "approverRoleRefs": ["reviewer"]}

    for key in (LIVE, REVIEWER):
        run_id = waiting_run(live, gate(**config))
        assert accepted(connect(key), run_id, "gate", ACCEPT) == "completed"


def test_an_audience_is_shown_but_entitles_no_one(live: Wire) -> None:
    audience = {"subjects": ["someone-else"], "roles": ["viewer"]}
    run_id = waiting_run(live, gate(audience=audience))

    assert payload(live, run_id, "interrupt.requested")["data"]["audience"] == audience
    assert accepted(live, run_id, "gate", ACCEPT) == "completed"


def test_roles_without_members_are_shown_and_entitle_no_one(live: Wire) -> None:
    config: JsonObject = {"approverGroupRefs": ["group:legal"], "approversList": ["someone"]}
    run_id = waiting_run(live, gate(**config))

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
def test_a_gate_that_no_one_could_open_is_refused_at_registration(
    acme: Wire, waits: dict[str, Json]
) -> None:
    response = acme.post("/v1/workflows", workflow([waits]))

    assert response.status_code == 400
    assert "groups" in response.json()["message"]
