from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import EVENT_TYPES
from wopr.protocol.events.payloads import PAYLOADS, payload_fault

if TYPE_CHECKING:
    from tests.protocol.conftest import Official, Sample

CATALOGUE = "run-event-payloads.schema.json"
TYPES = sorted(PAYLOADS)
CLOSED = [
    (event_type, title)
    for event_type in TYPES
    for title, shape in msgspec.json.schema(PAYLOADS[event_type])["$defs"].items()
    if shape.get("additionalProperties") is False
]
OPEN = [name for name in TYPES if (name, PAYLOADS[name].__name__) not in CLOSED]


def test_every_protocol_event_type_has_a_struct() -> None:
    assert PAYLOADS.keys() == EVENT_TYPES
    assert len(PAYLOADS) == 107


def test_the_event_types_are_the_published_ones(official: Official) -> None:
    published, _ = official.find("run-event.schema.json#/$defs/RunEventType")

    assert set(published["enum"]) == EVENT_TYPES


@pytest.mark.parametrize("full", [False, True], ids=["least", "full"])
@pytest.mark.parametrize("event_type", TYPES)
def test_output_of_our_structs_is_valid_by_the_published_schema(
    event_type: str, full: bool, official: Official, sample: type[Sample]
) -> None:
    written = msgspec.convert(
        sample(PAYLOADS[event_type], full=full).document, PAYLOADS[event_type]
    )

    index, _ = official.find(f"{CATALOGUE}#/$defs/_typeIndex")
    name = index["properties"][event_type]["$ref"]
    fault = official.fault(f"{CATALOGUE}{name}", msgspec.to_builtins(written))

    assert fault is None


@pytest.mark.parametrize("event_type", TYPES)
def test_a_full_payload_survives_a_round_trip(event_type: str, sample: type[Sample]) -> None:
    payload = sample(PAYLOADS[event_type], full=True).document

    again = msgspec.to_builtins(msgspec.convert(payload, PAYLOADS[event_type]))

    assert again == payload


@pytest.mark.parametrize(("event_type", "closed"), CLOSED)
def test_an_unknown_field_in_a_closed_shape_is_refused_by_name(
    event_type: str, closed: str, sample: type[Sample]
) -> None:
    payload = sample(PAYLOADS[event_type], full=True, intruder_in=closed).document

    fault = payload_fault(event_type, payload)

    assert fault is not None
    assert "unknown field `intruder`" in fault


@pytest.mark.parametrize("event_type", OPEN)
def test_an_unknown_field_in_an_open_payload_is_ignored(
    event_type: str, sample: type[Sample]
) -> None:
    payload = sample(PAYLOADS[event_type], full=False).document

    assert payload_fault(event_type, {**payload, "intruder": 1}) is None


@pytest.mark.parametrize("event_type", TYPES)
def test_a_missing_required_field_is_named(event_type: str, sample: type[Sample]) -> None:
    payload: JsonObject = sample(PAYLOADS[event_type], full=False).document

    for name in payload:
        rest = {key: value for key, value in payload.items() if key != name}
        assert f"required field `{name}`" in str(payload_fault(event_type, rest))


@pytest.mark.parametrize(
    ("event_type", "payload", "complaint"),
    [
        (
            "agent.toolReturned",
            {"agentId": "core.x", "toolName": "t", "callId": "c", "outcome": None}
            | {"error": {"code": "c", "message": "m"}},
            "outcome or error, not both",
        ),
        (
            "agent.verified",
            {"agentId": "core.x", "target": "t", "verdict": "pass", "criteria": ["a", "a"]},
            "criteria",
        ),
        ("approval.received", {"nodeId": "n", "action": "refine"}, "refineFeedback"),
        ("approval.received", {"nodeId": "n", "action": "edit-accept"}, "editedArtifactData"),
        (
            "core.workflowChain.event",
            {"phase": "dispatch.began", "workerId": "w", "parentRunId": "r", "childRunId": "c"},
            "has no childRunId",
        ),
        (
            "core.workflowChain.event",
            {"phase": "child.completed", "workerId": "w", "parentRunId": "r"},
            "needs childRunId",
        ),
        (
            "replay.divergedAtRefusal",
            {"sourceRunId": "r", "atSequence": 1}
            | {"originalEnvelopeKind": "valid", "replayEnvelopeKind": "valid"},
            "must differ",
        ),
        (
            "conversation.exchanged",
            {"conversationId": "c", "turnIndex": 1}
            | {
                "turn": {"messageId": "m", "from": "a", "content": 1, "ts": 1}
                | {"role": "agent", "turnIndex": 1}
            },
            "speakerId",
        ),
        (
            "conversation.exchanged",
            {"conversationId": "c", "turnIndex": 1}
            | {
                "turn": {"messageId": "m", "from": "a", "content": 1, "ts": 1}
                | {"role": "user", "turnIndex": 1, "agent": {"agentSharing": "shared:%shared%"}}
            },
            "groupId",
        ),
        (
            "eval.started",
            {"suiteId": "s", "suiteVersion": "1", "taskCount": 0} | {"modes": ["golden", "golden"]},
            "modes",
        ),
        (
            "model.capability.insufficient",
            {"nodeId": "n", "provider": "p", "model": "m"}
            | {"missingCapabilities": ["vision", "vision"]},
            "missingCapabilities",
        ),
        ("node.dispatched", None, "Expected `object`"),
        ("run.invented", {}, "not an event type"),
    ],
)
def test_an_invalid_payload_is_refused(event_type: str, payload: Json, complaint: str) -> None:
    assert complaint in str(payload_fault(event_type, payload))


@pytest.mark.parametrize(
    "decision",
    [
        {"kind": "next-worker", "nextWorkerIds": ["noop"], "confidence": 0.9},
        {"kind": "ask-user", "prompt": "Which one?"},
        {"kind": "terminate", "successCriteria": [{"key": "shipped", "met": True}]},
    ],
)
def test_each_kind_of_decision_is_parsed_and_valid_by_the_published_schema(
    decision: JsonObject, official: Official
) -> None:
    payload = {"agentId": "host:orchestrator", "decision": decision}

    assert payload_fault("runOrchestrator.decided", payload) is None
    assert official.fault(f"{CATALOGUE}#/$defs/runOrchestratorDecided", payload) is None


def test_a_vendor_event_can_contain_any_json() -> None:
    assert payload_fault("acme.shipment.booked", ["anything", None]) is None


def test_a_null_outcome_is_a_present_outcome() -> None:
    payload = {"agentId": "core.x", "toolName": "t", "callId": "c", "outcome": None}

    returned = msgspec.convert(payload, PAYLOADS["agent.toolReturned"])

    assert msgspec.to_builtins(returned) == payload
