from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import LIVE, ServedHost
from tests.support.interrupts import ACCEPT, accepted, answer, gate, inbox, token_of, waiting_run
from wopr.protocol.documents import Json, JsonObject

# Has the form of a cloud provider's key, but is not valid.
SECRET = "AKIAIOSFODNN7EXAMPLE"
ALL = ["accept", "reject", "refine", "edit-accept", "ask"]
CUSTOM = gate("gate", "core.interrupt", kind="custom", data={"customKind": "k"})
ASK = gate("gate", "core.clarificationGate", questions=[{"id": "q", "question": "?"}])
CONVO = gate("gate", "core.conversationGate")
SAYS: JsonObject = {"scope": "whole", "text": f"use {SECRET}"}


def everything(wire: Wire, run_id: str, host: ServedHost) -> str:
    """Return everything that can be read of a run, and the host's log."""
    frames = [] if wire.snapshot(run_id)["status"].startswith("waiting") else wire.frames(run_id)
    return "".join(
        [
            str(wire.log(run_id)),
            str(wire.snapshot(run_id)),
            str(inbox(wire, runId=run_id)),
            *(frame.data for frame in frames),
            host.log(),
        ]
    )


@pytest.mark.parametrize(
    ("waits", "value"),
    [
        (gate(actions=ALL), ACCEPT | {"feedback": f"with {SECRET}"}),
        (gate(actions=ALL), {"action": "reject", "feedback": SECRET}),
        (gate(actions=ALL), {"action": "refine", "refineFeedback": SAYS}),
        (gate(actions=ALL), {"action": "edit-accept", "editedArtifactData": {"deep": [SECRET]}}),
        (gate(actions=ALL), {"action": "ask", "question": f"is {SECRET} right?"}),
        (gate(actions=ALL, requiredApprovals=2), {"action": "reject", "feedback": SECRET}),
        (gate(actions=ALL), {"decision": "approved", "feedback": SECRET}),
        (ASK, {"answers": {"q": SECRET}}),
        (CUSTOM, {"any": SECRET}),
        (CUSTOM, SECRET),
        (CONVO, {"operation": "exchange", "turn": {"content": SECRET}}),
        (CONVO, {"operation": "close", "outcome": SECRET, "turn": {"content": SECRET}}),
    ],
)
def test_a_secret_in_an_answer_is_masked_for_every_reader(
    acme: Wire, host: ServedHost, waits: JsonObject, value: Json
) -> None:
    run_id = waiting_run(acme, waits)

    response = answer(acme, run_id, "gate", value)

    assert response.status_code == 200, response.text
    assert SECRET not in response.text
    seen = everything(acme, run_id, host)
    assert SECRET not in seen
    assert "[REDACTED" in seen


def test_a_secret_in_a_request_is_masked_in_the_inbox_and_for_the_token(
    acme: Wire, anonymous: Wire, host: ServedHost
) -> None:
    read = {"artifact": {"type": "variable", "variableName": "draft"}}
    shown = node("gate", "core.approvalGate", inputs=read, config={"title": "Use it?"})
    definition = workflow([shown], variables=[{"name": "draft", "type": "string"}])
    run_id = acme.create(acme.register(definition), {"draft": f"key={SECRET}"})

    seen = anonymous.get(f"/v1/interrupts/{token_of(acme, run_id)}")

    [item] = inbox(acme, runId=run_id)
    assert SECRET not in seen.text
    assert SECRET not in str(item)
    assert "[REDACTED" in str(item["data"])
    assert SECRET not in everything(acme, run_id, host)


def test_a_node_that_would_ask_with_a_secret_is_refused(acme: Wire) -> None:
    asked = [{"id": "q", "question": f"Is {SECRET} yours?"}]

    refused = acme.post(
        "/v1/workflows", workflow([gate("gate", "core.clarificationGate", questions=asked)])
    )

    assert refused.status_code == 400
    assert SECRET not in refused.text


def test_the_refusal_of_an_answer_does_not_repeat_its_secret(acme: Wire) -> None:
    schema = {"type": "integer"}
    config = {"kind": "custom", "data": {"customKind": "k"}, "resumeSchema": schema}
    run_id = waiting_run(acme, gate("gate", "core.interrupt", **config))

    refused = [
        answer(acme, run_id, "gate", SECRET),
        answer(acme, run_id, f"gate-{SECRET}", 1),
        acme.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": 1, SECRET: 1}),
    ]

    assert {response.status_code for response in refused} == {400, 404}
    assert not [response.text for response in refused if SECRET in response.text]


def test_a_registered_secret_is_masked_by_its_name(acme: Wire, host: ServedHost) -> None:
    key = LIVE
    run_id = waiting_run(acme, gate(actions=ALL))

    accepted(acme, run_id, "gate", ACCEPT | {"feedback": f"my key is {key}"})

    assert key not in everything(acme, run_id, host)
    assert "[REDACTED:api-key]" in str(acme.log(run_id))
