"""Every conformance workflow has the same log when replayed, byte for byte."""

from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.forks import ANSWERS, diff, forked, log_content, until_ended
from wopr.host.definitions import conformance_fixtures, runnable_fixtures
from wopr.nodes.builtin import builtin_registry
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.runs.definitions.checks import check_definition

pytestmark = pytest.mark.both_stores

REQUESTS: dict[str, JsonObject] = {
    "conformance-identity": {"inputs": {"payload": {"a": 1}}},
    "conformance-idempotent": {"inputs": {"nonce": "x"}},
    "conformance-cancellable": {"inputs": {"delayMs": 100}},
    "conformance-delay": {"inputs": {"delayMs": 100}},
    "conformance-replay-side-effect": {"inputs": {"delayMs": 100}},
    "conformance-run-duration-breach": {"configurable": {"runTimeoutMs": 1000}},
    "conformance-stream-text": {
        "configurable": {
            "mockProvider": {
                "id": "stream-text",
                "config": {"tokens": ["a", "b"], "delayMsPerToken": 5},
            }
        }
    },
}
# These run until they are cancelled.
ENDLESS = {"conformance-dispatch-cancellable-child"}


def _runnable() -> list[str]:
    registry = builtin_registry(with_conformance=True)
    found: dict[str, JsonObject] = {}
    for definition in conformance_fixtures():
        try:
            check_definition(definition, registry)
        except WoprError:
            continue
        found[str(definition["id"])] = definition
    return sorted(set(runnable_fixtures(found)) - ENDLESS)


def run_to_its_end(wire: Wire, workflow_id: str) -> str:
    """Run a workflow, and answer its waits and those of its children."""
    response = wire.post("/v1/runs", {"workflowId": workflow_id, **REQUESTS.get(workflow_id, {})})
    assert response.status_code == 201, response.text
    run_id = str(response.json()["runId"])

    def answer(shown: JsonObject) -> None:
        waiting = shown if "interrupt" in shown else _waiting_child(wire, shown)
        if waiting is not None:
            _answer(wire, waiting)

    until_ended(wire, run_id, answer)
    return run_id


def _waiting_child(wire: Wire, shown: JsonObject) -> JsonObject | None:
    for child in shown.get("childRuns", []):
        if str(child["status"]).startswith("waiting-"):
            found = wire.snapshot(child["runId"])
            return found if "interrupt" in found else None
    return None


def _answer(wire: Wire, shown: JsonObject) -> None:
    path = f"/v1/runs/{shown['runId']}/interrupts/{shown['interrupt']['nodeId']}"
    value = ANSWERS[str(shown["status"])]
    for voter in ({"voter": "a"}, {"voter": "b"}, {"voter": "c"}):
        # A quorum needs several; a vote after the last one is refused.
        response = wire.http.post(path, json={"resumeValue": value | voter})
        if response.status_code == 400:
            response = wire.http.post(path, json={"resumeValue": value})
        assert response.status_code in (200, 404, 409, 410), response.text


@pytest.mark.parametrize("workflow_id", _runnable())
def test_a_replayed_fixture_repeats_its_log(acme: Wire, workflow_id: str) -> None:
    source = run_to_its_end(acme, workflow_id)
    original = log_content(acme, source)

    whole = forked(acme, source)
    part = forked(acme, source, fromSeq=len(original) // 2)

    assert log_content(acme, whole) == original
    assert log_content(acme, part) == original
    assert diff(acme, source, whole)["divergedAtSeq"] is None
    assert acme.snapshot(whole)["status"] == acme.snapshot(source)["status"]
