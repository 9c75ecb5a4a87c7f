"""The audit entries of annotations: actor and target, never the text."""

from __future__ import annotations

import json

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from tests.support.feedback import FLAG, annotate, finished_run, path_of
from tests.support.host import ServedHost
from tests.support.stored_files import audit_entries
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


def entries(host: ServedHost, resource: str) -> list[JsonObject]:
    """Return the audit entries about a resource from the database."""
    return [entry for entry in audit_entries(host) if entry["resource"] == resource]


def of_annotating(host: ServedHost, run_id: str) -> list[JsonObject]:
    return [entry for entry in entries(host, run_id) if entry["action"] == "run.annotate"]


@pytest.mark.parametrize(
    "signal",
    [{"kind": "correction", "correction": "some words"}, {"kind": "label", "label": "some words"}],
    ids=lambda signal: str(signal["kind"]),
)
def test_a_stored_annotation_is_audited_without_its_text(
    acme: Wire, host: ServedHost, signal: JsonObject
) -> None:
    run_id = finished_run(acme)

    stored = annotate(acme, run_id, signal, note="some words", target={"nodeId": "noop"})

    [entry] = of_annotating(host, run_id)
    assert (entry["tenant"], entry["outcome"]) == ("acme", "allowed")
    assert entry["principal"] == stored["actor"]["principalRef"]
    later = annotate(acme, finished_run(acme))["createdAt"]
    assert stored["createdAt"] <= entry["time"] <= later
    assert entry["facts"] == {
        "annotationId": stored["annotationId"],
        "signalKind": signal["kind"],
        "nodeId": "noop",
    }
    assert "some words" not in str(entries(host, run_id))


def test_a_repeated_request_is_audited_once(acme: Wire, host: ServedHost) -> None:
    run_id = finished_run(acme)
    headers = {"Idempotency-Key": fresh()}

    for _ in range(2):
        acme.post(path_of(run_id), {"signal": FLAG}, headers=headers)

    assert len(of_annotating(host, run_id)) == 1


def test_reviews_and_judges_are_audited_too(acme: Wire, host: ServedHost) -> None:
    run_id = finished_run(acme)
    rubric = [{"kind": "flag"}]
    queue = acme.post("/v1/queues", {"name": "q", "rubric": rubric, "runIds": [run_id]}).json()
    path = f"/v1/queues/{queue['queueId']}/items"

    acme.post(f"{path}:next")
    acme.post(f"{path}/{run_id}:done", {"annotations": [{"signal": FLAG}]})
    judge = acme.post(
        "/v1/judges",
        {
            "workflowId": "conformance-noop",
            "agentId": "core.conformance.agents.cautious",
            "runIds": [run_id],
        },
    ).json()

    assert len(of_annotating(host, run_id)) == 1
    [ordered] = entries(host, judge["judgeId"])
    assert ordered["action"] == "judge.create"
    assert ordered["facts"]["agentId"] == "core.conformance.agents.cautious"
    # Runs that it starts must not appear in another test.
    eventually(lambda: acme.document(f"/v1/judges/{judge['judgeId']}")["state"] == "done")


def test_an_annotation_without_the_right_is_audited(
    acme: Wire, connect: Connect, host: ServedHost
) -> None:
    run_id = finished_run(acme)
    # With a separate key: only the first refusal of a key within a minute is recorded.
    options = ("--json", "--tenant", "acme", "--role", "viewer")
    viewer = connect(json.loads(host.command("keys", "create", *options))["key"])

    response = viewer.post(path_of(run_id), {"signal": FLAG, "note": "some words"})

    assert response.status_code == 403
    [entry] = of_annotating(host, run_id)
    assert (entry["tenant"], entry["outcome"]) == ("acme", "denied")
    assert "some words" not in str(entry)


def test_an_annotation_that_was_not_stored_is_not_audited_as_allowed(
    acme: Wire, globex: Wire, host: ServedHost
) -> None:
    run_id = finished_run(acme)

    assert acme.post(path_of(run_id), {}).status_code == 400
    assert globex.post(path_of(run_id), {"signal": FLAG}).status_code == 404

    assert of_annotating(host, run_id) == []
