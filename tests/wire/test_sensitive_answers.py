"""Answers to a node with sensitive outputs are masked for readers and plain for nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.agent_definitions import DONE, child, next_worker, supervised
from tests.support.client import Wire
from tests.support.definitions import delay, edge, node, variable, workflow
from tests.support.forks import forked, log_content
from tests.support.host import ACME, OPERATOR, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    accepted,
    answer,
    events,
    external,
    gate,
    inbox,
    payload,
    until_waiting,
    waiting_run,
)
from tests.support.stored_files import stored
from tests.support.surfaces import leaks, surfaces
from wopr.protocol.documents import Json, JsonObject

WORD = "the-kestrel-hunts-at-dawn"
MASK = "[REDACTED]"
ALL = ["accept", "reject", "refine", "edit-accept", "ask"]
ASK = "core.clarificationGate"
CONVERSE = "core.conversationGate"
EDIT = {"action": "edit-accept", "editedArtifactData": {"text": WORD}}


def private(waits: JsonObject, port: str) -> JsonObject:
    return waits | {"outputSensitivity": {port: True}}


APPROVES = private(gate(actions=ALL), "artifact")
ASKS = private(gate("gate", ASK, questions=[{"id": "q", "question": "?"}]), "answers")
CUSTOM = private(gate("gate", "core.interrupt", kind="custom", data={"customKind": "k"}), "value")
HEARS = private(external("gate"), "status")
TALKS = private(gate("gate", CONVERSE), "outcome")


def everything(wire: Wire, run_id: str) -> str:
    """Return everything that a reader can get of an ended run."""
    return surfaces(wire, run_id) + wire.get(f"/v1/runs/{run_id}/debug-bundle").text


@pytest.mark.parametrize("mode", ["mask", "omit", "hash"])
@pytest.mark.parametrize(
    ("waits", "value", "shown"),
    [
        (APPROVES, ACCEPT | {"feedback": WORD}, ACCEPT | {"feedback": MASK}),
        (APPROVES, EDIT, EDIT | {"editedArtifactData": MASK}),
        (APPROVES, EDIT | {"editedArtifactData": 7}, EDIT | {"editedArtifactData": MASK}),
        (
            APPROVES,
            {"action": "reject", "feedback": WORD},
            {"action": "reject", "feedback": MASK},
        ),
        (ASKS, {"answers": {"q": WORD}}, {"answers": {"q": MASK}}),
        (ASKS, {"answers": {"q": "no"}}, {"answers": {"q": MASK}}),
        (CUSTOM, WORD, MASK),
        (CUSTOM, {"value": WORD}, {"value": MASK}),
        (HEARS, {"orderId": "o1", "status": WORD}, {"orderId": MASK, "status": MASK}),
        (
            TALKS,
            {"operation": "close", "outcome": WORD, "turn": {"content": WORD}},
            {"operation": "close", "outcome": MASK},
        ),
    ],
)
def test_an_answer_to_a_sensitive_node_is_masked_except_for_the_protocol_s_words(
    acme: Wire, waits: JsonObject, value: Json, shown: Json, mode: str
) -> None:
    masking = {"complianceConfig": {"maskingMode": mode}}
    run_id = waiting_run(acme, waits, metadata=masking)

    accepted(acme, run_id, "gate", value)
    acme.finished(run_id)

    assert payload(acme, run_id, "interrupt.resolved")["resumeValue"] == shown
    assert payload(acme, run_id, "node.resumed")["resumeValue"] == shown
    assert not leaks(everything(acme, run_id), WORD)


def test_passthrough_shows_an_answer_unchanged(acme: Wire) -> None:
    masking = {"complianceConfig": {"maskingMode": "passthrough"}}
    run_id = waiting_run(acme, ASKS, metadata=masking)

    accepted(acme, run_id, "gate", {"answers": {"q": WORD}})

    said = payload(acme, run_id, "interrupt.resolved")["resumeValue"]
    assert said == {"answers": {"q": WORD}}


@pytest.mark.parametrize(
    ("value", "event", "shown"),
    [
        (
            {"action": "refine", "refineFeedback": {"scope": "items", "itemIds": [WORD]}},
            "approval.received",
            {"refineFeedback": {"scope": "items", "text": MASK}},
        ),
        ({"action": "ask", "question": WORD}, "log.appended", {}),
        (
            {"action": "reject", "feedback": WORD, "voter": "eve"},
            "approval.rejected",
            {"reason": MASK},
        ),
    ],
)
def test_an_answer_that_does_not_end_the_wait_is_masked_too(
    fixtures: Wire, value: JsonObject, event: str, shown: JsonObject
) -> None:
    waits = gate(actions=ALL, requiredApprovals=3, rejectionPolicy="majority")
    run_id = waiting_run(fixtures, private(waits, "artifact"))

    accepted(fixtures, run_id, "gate", value)

    assert payload(fixtures, run_id, event).items() >= shown.items()
    if value["action"] == "refine":
        assert payload(fixtures, run_id, "interrupt.resolved").items() >= shown.items()
    seen = str(fixtures.log(run_id)) + str(fixtures.snapshot(run_id))
    assert not leaks(seen + str(inbox(fixtures, runId=run_id)), WORD)


def test_the_reason_of_an_override_is_masked_at_a_sensitive_gate(
    acme: Wire, connect: Callable[..., Wire]
) -> None:
    rule = {"requiredRole": "auditor", "override": {"requiredRole": "operator"}}
    waits = gate("gate", "core.openwop.governance.approvalGate", **rule)
    run_id = waiting_run(acme, private(waits, "artifact"))

    accepted(connect(OPERATOR), run_id, "gate", {"decision": "granted", "reason": WORD})

    assert payload(acme, run_id, "approval.overridden")["reason"] == MASK
    said = payload(acme, run_id, "interrupt.resolved")["resumeValue"]
    assert said == {"decision": "granted", "reason": MASK}
    assert not leaks(everything(acme, run_id), WORD)


def test_a_sensitive_conversation_is_masked_in_the_log_and_plain_in_its_channel(
    acme: Wire,
) -> None:
    # The text is the second turn; a short one would not be recognised again.
    right = "size(channels.conversation[1].content) == 3 && size(nodes.gate.outcome) == 2"
    run_id = waiting_run(
        acme,
        TALKS,
        node("check", "core.conditional", config={"expression": right}),
        channels={"conversation": {"reducer": "message"}},
        edges=[edge("gate", "check")],
    )

    accepted(acme, run_id, "gate", {"operation": "exchange", "turn": {"content": "yes"}})
    accepted(acme, run_id, "gate", {"operation": "close", "outcome": "ok"})
    found = acme.finished(run_id)

    assert found["nodeStates"]["check"]["outputs"] == {"result": True}
    [said] = events(acme, run_id, "conversation.exchanged")
    assert said["payload"]["turn"]["content"] == MASK
    assert payload(acme, run_id, "conversation.closed")["outcome"] == MASK
    turns = [e["payload"]["value"] for e in events(acme, run_id, "channel.written")]
    assert [turn["content"] for turn in turns] == [MASK, MASK, None]


def checked(waits: JsonObject, expression: str) -> list[JsonObject]:
    return [waits, node("check", "core.conditional", config={"expression": expression})]


@pytest.mark.parametrize(
    ("waits", "value", "said"),
    [
        (APPROVES, EDIT, "nodes.gate.artifact.text"),
        (ASKS, {"answers": {"q": WORD}}, "nodes.gate.answers.q"),
        (HEARS, {"orderId": "o1", "status": WORD}, "nodes.gate.status"),
    ],
)
def test_the_plain_answer_survives_a_restart_and_is_encrypted(
    new_host: Callable[..., ServedHost],
    connect: Callable[..., Wire],
    waits: JsonObject,
    value: Json,
    said: str,
) -> None:
    host = new_host("--log-format", "json", "--log-level", "debug")
    wire = connect(ACME, host)
    nodes = [*checked(waits, f"size({said}) == {len(WORD)}"), delay("later", 1200)]
    run_id = waiting_run(wire, *nodes, edges=[edge("gate", "later"), edge("later", "check")])
    accepted(wire, run_id, "gate", value)
    host.restart()
    wire = connect(ACME, host)
    meanwhile = stored(host)

    found = wire.finished(run_id)

    assert found["nodeStates"]["check"]["outputs"] == {"result": True}
    assert not leaks(meanwhile, WORD)
    assert not leaks(everything(wire, run_id), WORD)
    host.stop()
    assert not leaks(stored(host), WORD)
    assert not leaks(host.log(), WORD)


def test_an_answer_that_repeats_a_masked_value_is_still_plain_for_its_node(acme: Wire) -> None:
    asks = gate("gate", ASK, questions=[{"id": "q", "question": "?"}])
    definition = workflow(
        checked(asks, "nodes.gate.answers.q == variables.word"),
        edges=[edge("gate", "check")],
        variables=[variable("word", sensitive=True)],
    )
    run_id = acme.create(acme.register(definition), {"word": WORD})
    until_waiting(acme, run_id)

    accepted(acme, run_id, "gate", {"answers": {"q": WORD}})
    found = acme.finished(run_id)

    assert found["nodeStates"]["check"]["outputs"] == {"result": True}
    assert not leaks(everything(acme, run_id), WORD)


@pytest.mark.parametrize(
    ("waits", "value"),
    [
        (APPROVES, EDIT),
        (ASKS, {"answers": {"q": WORD}}),
        (TALKS, {"operation": "close", "outcome": WORD}),
    ],
)
def test_a_replay_repeats_a_masked_answer_with_its_mask(
    acme: Wire, waits: JsonObject, value: Json
) -> None:
    run_id = waiting_run(acme, waits)
    accepted(acme, run_id, "gate", value)
    acme.finished(run_id)

    replay = forked(acme, run_id)

    assert log_content(acme, replay) == log_content(acme, run_id)
    assert not leaks(everything(acme, replay), WORD)


def test_a_replay_that_needs_the_plain_answer_reports_it_as_missing(acme: Wire) -> None:
    nodes = checked(ASKS, f"size(nodes.gate.answers.q) == {len(WORD)}")
    run_id = waiting_run(acme, *nodes, edges=[edge("gate", "check")])
    accepted(acme, run_id, "gate", {"answers": {"q": WORD}})
    acme.finished(run_id)

    replay = forked(acme, run_id)

    assert acme.snapshot(replay)["error"]["code"] == "replay_source_missing"


def test_a_sensitive_supervisor_s_decisions_are_carried_out_and_not_shown(fixtures: Wire) -> None:
    worker = fixtures.register(child())
    unsure = next_worker("some-other-worker")
    definition = supervised(unsure, DONE, supervisor={"mockConfidence": 0.3})
    definition["nodes"][0]["outputSensitivity"] = {"decision": True}
    run_id = fixtures.create(fixtures.register(definition))
    until_waiting(fixtures, run_id)

    response = answer(fixtures, run_id, "supervisor", {"decision": next_worker(worker)})
    found = fixtures.finished(run_id)

    assert response.status_code == 200, response.text
    assert found["status"] == "completed", found
    assert [ran["workflowId"] for ran in found["childRuns"]] == [worker]
    said = payload(fixtures, run_id, "interrupt.resolved")["resumeValue"]
    assert said == {"decision": MASK}
    # A masked value cannot be used: a replay reports it where it would have to be.
    replay = fixtures.snapshot(forked(fixtures, run_id))
    assert replay["error"]["code"] == "replay_source_missing"
    told = [e["payload"]["decision"] for e in events(fixtures, run_id, "runOrchestrator.decided")]
    assert told == [{"kind": "next-worker", "nextWorkerIds": [MASK]}, {"kind": "terminate"}]
