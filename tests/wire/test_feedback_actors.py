"""Annotations in the name of an agent, with a key that has the scope `annotations:actor`."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.feedback import CANARY, FLAG, finished_run, listed, path_of
from tests.support.host import ServedHost
from tests.wire.conftest import Connect
from tests.wire.test_feedback_audit import of_annotating
from wopr.protocol.documents import Json, JsonObject
from wopr.security.api_keys import ROLES

JUDGE = "acme.quality.judge"
BODY: JsonObject = {"signal": FLAG, "actor": {"principalRef": JUDGE}}
GRANT = ("--role", "admin", "--scope", "annotations:actor")


@pytest.fixture
def judge(host: ServedHost, connect: Connect) -> Wire:
    """Connect a client whose key has the scope."""
    return connect(host.command("keys", "create", "--tenant", "acme", *GRANT).strip())


def test_an_actor_is_stored_unchanged(acme: Wire, judge: Wire) -> None:
    run_id = finished_run(acme)

    response = judge.post(path_of(run_id), BODY)

    assert response.status_code == 201, response.text
    assert response.json()["actor"] == {"principalRef": JUDGE}
    assert [each["actor"] for each in listed(acme, run_id)] == [{"principalRef": JUDGE}]


def test_the_audit_entry_names_the_actor_and_the_credential(
    acme: Wire, judge: Wire, host: ServedHost
) -> None:
    run_id = finished_run(acme)
    own = judge.post(path_of(run_id), {"signal": FLAG}).json()["actor"]["principalRef"]

    judge.post(path_of(run_id), BODY)

    entries = of_annotating(host, run_id)
    assert own != JUDGE
    assert [entry["principal"] for entry in entries] == [own, own]
    assert [entry["facts"].get("actor") for entry in entries] == [None, JUDGE]


def test_a_key_without_the_scope_cannot_name_an_actor(acme: Wire) -> None:
    run_id = finished_run(acme)

    response = acme.post(path_of(run_id), BODY)

    assert response.status_code == 400
    body = response.json()
    assert body["error"] == "validation_error"
    assert body["details"]["field"] == "actor"
    assert "annotations:actor" in body["message"]
    assert listed(acme, run_id) == []


def test_no_role_includes_the_scope() -> None:
    assert not [role for role, scopes in ROLES.items() if "annotations:actor" in scopes]


@pytest.mark.parametrize(
    "actor", [{}, {"principalRef": ""}, {"principalRef": 1}, {"principalRef": "x" * 257}, "judge"]
)
def test_an_invalid_actor_is_refused(acme: Wire, judge: Wire, actor: Json) -> None:
    response = judge.post(path_of(finished_run(acme)), {"signal": FLAG, "actor": actor})

    assert response.status_code == 400
    assert "actor" in response.json()["message"]


def test_a_secret_in_an_actor_is_not_stored(acme: Wire, judge: Wire) -> None:
    run_id = finished_run(acme)

    judge.post(path_of(run_id), {"signal": FLAG, "actor": {"principalRef": f"judge {CANARY}"}})

    assert len(listed(acme, run_id)) == 1
    assert CANARY not in str(listed(acme, run_id))


def test_an_agent_s_correction_is_not_an_intervention(acme: Wire, judge: Wire) -> None:
    tag = fresh("tag")
    run_id = acme.run("conformance-noop", tags=[tag])["runId"]
    correction = {"kind": "correction", "correction": "so"}
    before = acme.document("/v1/feedback/summary")["total"]

    judge.post(path_of(run_id), {**BODY, "signal": correction})

    after = acme.document("/v1/feedback/summary")["total"]
    assert after["correctedRuns"] == before["correctedRuns"] + 1
    assert after["intervenedRuns"] == before["intervenedRuns"]
    params = {"tag": tag, "corrected": "true"}
    assert len(acme.document("/v1/runs", params=params)["items"]) == 1


def test_a_key_of_another_tenant_with_the_scope_finds_no_run(
    acme: Wire, host: ServedHost, connect: Connect
) -> None:
    other = connect(host.command("keys", "create", "--tenant", "globex", *GRANT).strip())

    assert other.post(path_of(finished_run(acme)), BODY).status_code == 404
