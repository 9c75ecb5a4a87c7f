"""What the audit is told of annotations: who and what, never the words."""

from __future__ import annotations

import json

import pytest

from tests.wire.at_rest import audit_entries
from tests.wire.client import Wire
from tests.wire.conftest import Connect
from tests.wire.definitions import fresh
from tests.wire.feedback import FLAG, annotate, finished_run, path_of
from tests.wire.fleet import eventually
from tests.wire.host import ServedHost
from wopr.protocol.documents import JsonObject


def entries(host: ServedHost, resource: str) -> list[JsonObject]:
    """The audit entries about a thing, as they lie in the database."""
    return [entry for entry in audit_entries(host) if entry["resource"] == resource]


def of_annotating(host: ServedHost, run_id: str) -> list[JsonObject]:
    return [entry for entry in entries(host, run_id) if entry["action"] == "run.annotate"]


@pytest.mark.parametrize(
    "signal",
    [{"kind": "correction", "correction": "some words"}, {"kind": "label", "label": "some words"}],
    ids=lambda signal: str(signal["kind"]),
)
def test_a_stored_annotation_is_on_record_without_its_words(
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


def test_a_repeated_request_is_on_record_once(acme: Wire, host: ServedHost) -> None:
    run_id = finished_run(acme)
    headers = {"Idempotency-Key": fresh()}

    for _ in range(2):
        acme.post(path_of(run_id), {"signal": FLAG}, headers=headers)

    assert len(of_annotating(host, run_id)) == 1


def test_a_review_and_a_judge_are_on_record_too(acme: Wire, host: ServedHost) -> None:
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
    # Runs that it starts must not come into another test.
    eventually(lambda: acme.document(f"/v1/judges/{judge['judgeId']}")["state"] == "done")


def test_a_key_that_may_not_annotate_is_on_record(
    acme: Wire, connect: Connect, host: ServedHost
) -> None:
    run_id = finished_run(acme)
    # A key of its own: of what one key is refused in a minute only the first is on record.
    options = ("--json", "--tenant", "acme", "--role", "viewer")
    viewer = connect(json.loads(host.command("keys", "create", *options))["key"])

    response = viewer.post(path_of(run_id), {"signal": FLAG, "note": "some words"})

    assert response.status_code == 403
    [entry] = of_annotating(host, run_id)
    assert (entry["tenant"], entry["outcome"]) == ("acme", "denied")
    assert "some words" not in str(entry)


def test_what_was_not_stored_is_not_on_record_as_allowed(
    acme: Wire, globex: Wire, host: ServedHost
) -> None:
    run_id = finished_run(acme)

    assert acme.post(path_of(run_id), {}).status_code == 400
    assert globex.post(path_of(run_id), {"signal": FLAG}).status_code == 404

    assert of_annotating(host, run_id) == []
