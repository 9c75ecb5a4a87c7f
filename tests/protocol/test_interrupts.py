from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import (
    DATA_TYPES,
    Accept,
    ClarificationResume,
    EditAccept,
    InterruptKind,
    InterruptPayload,
    Refine,
    RefineFeedback,
    Reject,
    ResolveInterrupt,
    read_approval,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Official, Sample

KINDS: list[InterruptKind] = sorted(DATA_TYPES)


def request(kind: str, data: JsonObject) -> JsonObject:
    return {"kind": kind, "key": "gate:0", "data": data}


def test_every_kind_has_its_data_type() -> None:
    assert DATA_TYPES.keys() == set(get_args(InterruptKind))


@pytest.mark.parametrize("full", [False, True], ids=["least", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_each_kind_is_parsed_and_valid_by_the_published_schema(
    kind: InterruptKind, full: bool, official: Official, sample: type[Sample]
) -> None:
    wire = request(kind, sample(DATA_TYPES[kind], full=full).document)

    read = msgspec.convert(wire, InterruptPayload)

    assert isinstance(read.typed_data(), DATA_TYPES[kind])
    assert msgspec.to_builtins(read) == wire
    assert official.fault("suspend-request.schema.json", wire) is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "approval"])
def test_an_unknown_field_in_closed_data_is_refused_by_name(
    kind: InterruptKind, sample: type[Sample]
) -> None:
    data = sample(DATA_TYPES[kind], full=True).document | {"intruder": 1}

    with pytest.raises(msgspec.ValidationError, match=f"{kind}.*`intruder`"):
        msgspec.convert(request(kind, data), InterruptPayload)


def test_approval_data_is_open(sample: type[Sample]) -> None:
    data = sample(DATA_TYPES["approval"], full=False).document | {"profile": "strict"}

    read = msgspec.convert(request("approval", data), InterruptPayload)

    assert read.data["profile"] == "strict"


@pytest.mark.parametrize(
    ("kind", "data", "complaint"),
    [
        ("conversation.start", {"conversationId": "c"}, "title or initialPrompt"),
        ("conversation.close", {"conversationId": "c"}, "needs reason"),
        ("clarification", {"questions": []}, "length >= 1"),
        ("approval", {"title": "t"}, "artifactId"),
        (
            "approval",
            {"artifactId": "a", "artifactType": "t", "title": "t", "actions": ["ask", "ask"]},
            "twice",
        ),
        (
            "approval",
            {"artifactId": "a", "artifactType": "t", "title": "t", "actions": ["edit"]},
            "Invalid enum value 'edit'",
        ),
        ("low-confidence", {"agentId": "core.x", "threshold": 0.7, "observed": 1.5}, "<= 1"),
        ("telepathy", {}, "Invalid enum value 'telepathy'"),
    ],
)
def test_an_invalid_request_is_refused(kind: str, data: JsonObject, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.convert(request(kind, data), InterruptPayload)


def test_an_unknown_field_in_the_request_is_refused_by_name() -> None:
    wire = request("custom", {"customKind": "k"}) | {"runId": "r"}

    with pytest.raises(msgspec.ValidationError, match="`runId`"):
        msgspec.convert(wire, InterruptPayload)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"action": "accept", "voter": "ann"}, Accept(voter="ann")),
        ({"action": "reject", "feedback": "no"}, Reject(feedback="no")),
        (
            {"action": "refine", "refineFeedback": {"scope": "items", "itemIds": ["1"]}},
            Refine(refine_feedback=RefineFeedback(scope="items", item_ids=["1"])),
        ),
        (
            {"action": "edit-accept", "editedArtifactData": None},
            EditAccept(edited_artifact_data=None),
        ),
        ({"decision": "approved"}, Accept()),
        ({"decision": "rejected"}, Reject()),
        (
            {"decision": "rejected", "feedback": "shorter"},
            Refine(refine_feedback=RefineFeedback(scope="whole", text="shorter")),
        ),
    ],
)
def test_an_approval_is_parsed_in_its_new_and_its_old_form(value: Json, expected: object) -> None:
    assert read_approval(value) == expected


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"action": "refine"}, "refineFeedback"),
        ({"action": "edit-accept"}, "editedArtifactData"),
        ({"action": "edit"}, "edit"),
        ({"decision": "timeout"}, "timeout"),
        ({}, "action"),
        (None, "object"),
    ],
)
def test_an_incomplete_approval_is_refused(value: Json, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        read_approval(value)


@pytest.mark.parametrize("answers", [{"q1": "blue"}, [{"id": "q1", "answer": "blue"}]])
def test_answers_are_parsed_as_a_map_and_as_a_list(answers: Json) -> None:
    read = msgspec.convert({"answers": answers}, ClarificationResume)

    assert read.by_question() == {"q1": "blue"}


def test_the_resolve_body_is_closed_and_requires_its_value() -> None:
    assert msgspec.convert({"resumeValue": None}, ResolveInterrupt).resume_value is None
    with pytest.raises(msgspec.ValidationError, match="resumeValue"):
        msgspec.convert({}, ResolveInterrupt)
    with pytest.raises(msgspec.ValidationError, match="intruder"):
        msgspec.convert({"resumeValue": 1, "intruder": 1}, ResolveInterrupt)
