from __future__ import annotations

import json

import pytest

from tests.models.model_runs import (
    CITY,
    NODE,
    error_of,
    only_payload,
    outputs_of,
    payloads,
    run_node,
)
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Say
from tests.support.client import Wire
from wopr.protocol.documents import Json, JsonObject

PARIS = '{"city": "Paris"}'
DECISION: JsonObject = {
    "type": "object",
    "properties": {"route": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["route", "confidence"],
}


def test_a_valid_answer_is_the_result(acme: Wire, any_server: ModelServer) -> None:
    model, log = run_node(acme, any_server, [Say(PARIS)], "structured", {"schema": CITY})

    assert outputs_of(log)["result"] == {"city": "Paris"}
    wanted = any_server.schema_of(any_server.requests[model][0])
    assert wanted["properties"] == CITY["properties"]


def test_an_invalid_answer_is_requested_once_more(acme: Wire, any_server: ModelServer) -> None:
    turns = [Say('{"town": "Paris"}'), Say(PARIS)]

    model, log = run_node(acme, any_server, turns, "structured", {"schema": CITY})

    assert only_payload(log, "envelope.retry.attempted")["reason"] == "schema-violation"
    assert outputs_of(log)["result"] == {"city": "Paris"}
    assert len(payloads(log, "provider.usage")) == any_server.request_count(model) == 2


@pytest.mark.parametrize(
    ("turn", "reason", "code"),
    [
        (Say("Paris, of course."), "parse-error", "envelope_payload_invalid"),
        (Say('{"city": 7}'), "schema-violation", "envelope_payload_invalid"),
        (
            Say('{"city": "Pa', finish="length"),
            "truncation",
            "envelope_truncation_unrecoverable",
        ),
    ],
)
def test_a_repeatedly_invalid_answer_fails_the_node(
    acme: Wire, any_server: ModelServer, turn: Say, reason: str, code: str
) -> None:
    model, log = run_node(acme, any_server, [turn, turn], "structured", {"schema": CITY})

    exhausted = only_payload(log, "envelope.retry.exhausted")
    assert (exhausted["totalAttempts"], exhausted["finalReason"]) == (2, reason)
    assert error_of(log) == code
    message = only_payload(log, "run.failed")["error"]["message"]
    assert ("maxOutputTokens" in message) == (reason == "truncation")
    assert any_server.request_count(model) == 2


def test_an_invalid_value_of_a_model_is_named_and_not_repeated(
    acme: Wire, server: OpenAiServer
) -> None:
    _, log = run_node(
        acme, server, [Say('{"city": 7391000739100073910}')] * 2, "structured", {"schema": CITY}
    )

    assert "7391000739100073910" not in str(log)


def test_an_answer_is_extracted_from_a_code_block(acme: Wire, server: OpenAiServer) -> None:
    _, log = run_node(acme, server, [Say(f"```json\n{PARIS}\n```")], "structured", {"schema": CITY})

    assert only_payload(log, "envelope.recovery.applied")["path"] == "markdown-fence"
    assert outputs_of(log)["result"] == {"city": "Paris"}


def test_an_answer_of_many_line_breaks_is_refused_like_any_other(
    acme: Wire, server: OpenAiServer
) -> None:
    turns = [Say("```json" + "\n" * 20_000 + "Paris")] * 2

    _, log = run_node(acme, server, turns, "structured", {"schema": CITY})

    assert only_payload(log, "envelope.retry.exhausted")["finalReason"] == "parse-error"


def test_a_sure_decision_is_accepted(acme: Wire, any_server: ModelServer) -> None:
    said = json.dumps({"route": "billing", "confidence": 0.9})

    _, log = run_node(acme, any_server, [Say(said)], "structured", {"schema": DECISION})

    assert only_payload(log, "agent.decided")["confidence"] == 0.9
    assert outputs_of(log)["confidence"] == 0.9


def _unsure(wire: Wire, server: OpenAiServer) -> str:
    said = json.dumps({"route": "billing", "confidence": 0.2})
    _, log = run_node(wire, server, [Say(said)], "structured", {"schema": DECISION})
    assert only_payload(log, "node.suspended")["observed"] == 0.2
    run_id: str = log[0]["runId"]
    return run_id


def _answered(wire: Wire, run_id: str, value: Json) -> int:
    answer = wire.post(f"/v1/runs/{run_id}/interrupts/{NODE}", {"resumeValue": value})
    return answer.status_code


def test_an_unsure_decision_waits_and_is_accepted_by_a_person(
    acme: Wire, server: OpenAiServer
) -> None:
    run_id = _unsure(acme, server)

    assert _answered(acme, run_id, {"action": "accept"}) == 200

    outputs = acme.finished(run_id)["outputs"][NODE]
    assert outputs["result"]["route"] == "billing"
    assert [d.get("confidence") for d in payloads(acme.log(run_id), "agent.decided")] == [0.2, None]


def test_a_person_s_decision_replaces_the_model_s(acme: Wire, server: OpenAiServer) -> None:
    run_id = _unsure(acme, server)
    instead = {"route": "sales", "confidence": 1}

    assert _answered(acme, run_id, {"decision": instead}) == 200

    assert acme.finished(run_id)["outputs"][NODE]["result"] == instead
    assert payloads(acme.log(run_id), "agent.decided")[-1]["decision"] == instead


def test_a_decision_that_does_not_fit_the_schema_is_refused(
    acme: Wire, server: OpenAiServer
) -> None:
    run_id = _unsure(acme, server)

    assert _answered(acme, run_id, {"decision": {"way": "sales"}}) == 400

    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_rejected_decision_fails_the_node(acme: Wire, server: OpenAiServer) -> None:
    run_id = _unsure(acme, server)

    assert _answered(acme, run_id, {"action": "reject"}) == 200

    assert acme.finished(run_id)["error"]["code"] == "decision_rejected"
