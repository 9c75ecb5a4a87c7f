from __future__ import annotations

import pytest

from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.definitions import workflow
from tests.wire.host import DEVELOPER, LIVE, OPERATOR, REVIEWER, VIEWER
from tests.wire.waiting import (
    ACCEPT,
    ALL,
    EDIT,
    REFINE,
    REJECT,
    answer,
    events,
    gate,
    name_of,
    payload,
    refused,
    taken,
    waiting,
)
from wopr.protocol.documents import Json, JsonObject


@pytest.mark.parametrize("key", [OPERATOR, REVIEWER, LIVE])
def test_a_key_with_the_scope_may_answer(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting(acme, gate())

    assert taken(connect(key), run_id, "gate", ACCEPT) == "completed"


@pytest.mark.parametrize("key", [VIEWER, DEVELOPER])
def test_a_key_without_the_scope_may_not(connect: Connect, acme: Wire, key: str) -> None:
    run_id = waiting(acme, gate())

    response = answer(connect(key), run_id, "gate", ACCEPT)

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "approvals:respond"
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_without_a_key_nobody_may(nobody: Wire, acme: Wire) -> None:
    run_id = waiting(acme, gate())

    assert refused(nobody, run_id, "gate", ACCEPT) == (401, "unauthenticated")
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


@pytest.mark.parametrize(
    "config",
    [{"approversList": [name_of(REVIEWER)]}, {"approverRoleRefs": ["reviewer"]}],
    ids=["by name", "by role"],
)
def test_only_those_whom_a_gate_names_may_decide(
    connect: Connect, live: Wire, config: dict[str, Json]
) -> None:
    run_id = waiting(live, gate(actions=ALL, **config))

    for value in (ACCEPT, REJECT, REFINE, EDIT, {"action": "ask"}):
        assert refused(live, run_id, "gate", value) == (403, "forbidden")

    assert live.snapshot(run_id)["status"] == "waiting-approval"
    assert not events(live, run_id, "log.appended")
    assert taken(connect(REVIEWER), run_id, "gate", ACCEPT) == "completed"
    assert payload(live, run_id, "approval.received")["decidedBy"] == name_of(REVIEWER)


def test_a_list_and_a_role_both_entitle(connect: Connect, live: Wire) -> None:
    config: JsonObject = {"approversList": [name_of(LIVE)], "approverRoleRefs": ["reviewer"]}

    for key in (LIVE, REVIEWER):
        run_id = waiting(live, gate(**config))
        assert taken(connect(key), run_id, "gate", ACCEPT) == "completed"


def test_the_audience_is_told_and_is_not_who_may_decide(live: Wire) -> None:
    audience = {"subjects": ["someone-else"], "roles": ["viewer"]}
    run_id = waiting(live, gate(audience=audience))

    assert payload(live, run_id, "interrupt.requested")["data"]["audience"] == audience
    assert taken(live, run_id, "gate", ACCEPT) == "completed"


def test_groups_that_nobody_is_in_are_shown_and_entitle_nobody(live: Wire) -> None:
    config: JsonObject = {"approverGroupRefs": ["group:legal"], "approversList": ["someone"]}
    run_id = waiting(live, gate(**config))

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
def test_a_gate_that_nobody_could_open_is_refused_when_it_is_registered(
    acme: Wire, waits: dict[str, Json]
) -> None:
    response = acme.post("/v1/workflows", workflow([waits]))

    assert response.status_code == 400
    assert "groups" in response.json()["message"]
