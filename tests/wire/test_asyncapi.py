"""The AsyncAPI document: its structure, and that real frames match it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.support.client import Frame, Wire
from tests.support.feedback import annotate, live_run, until
from tests.support.kahn import KahnRun, push_run
from wopr.kahn.events import EVENT_NAMES
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events import EVENT_TYPES
from wopr.protocol.streams import MODES, is_update

KEY = re.compile(r"^[A-Za-z0-9_.-]+$")
# The fields that AsyncAPI 3.0 defines for each object that the document has.
FIELDS = {
    "root": {"asyncapi", "info", "defaultContentType", "channels", "operations", "components"},
    "info": {"title", "version", "description", "license"},
    "channel": {"address", "title", "description", "parameters", "messages"},
    "operation": {"action", "channel", "summary", "security", "messages", "bindings"},
    "message": {"name", "title", "summary", "payload"},
    "components": {"messages", "schemas", "securitySchemes"},
}


@pytest.fixture
def described(anonymous: Wire) -> JsonObject:
    response = anonymous.get("/v1/asyncapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    found: JsonObject = response.json()
    return found


def resolved(document: JsonObject, reference: str) -> Any:
    """Return the target of a reference in the document."""
    assert reference.startswith("#/"), reference
    found: Any = document
    for part in reference[2:].split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def references(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for member in value.values():
            yield from references(member)
    elif isinstance(value, list):
        for member in value:
            yield from references(member)


def validator(document: JsonObject, message: str) -> jsonschema_rs.Draft7Validator:
    payload = document["components"]["messages"][message]["payload"]
    return jsonschema_rs.Draft7Validator({**payload, "components": document["components"]})


def own(fields: JsonObject) -> set[str]:
    """Return the fields of an object that are not extensions."""
    return {name for name in fields if not name.startswith("x-")}


def test_the_document_has_the_structure_of_asyncapi_3(described: JsonObject) -> None:
    assert re.fullmatch(r"3\.\d+\.\d+", described["asyncapi"])
    assert own(described) <= FIELDS["root"]
    assert own(described["info"]) <= FIELDS["info"]
    assert own(described["components"]) <= FIELDS["components"]
    for channel in described["channels"].values():
        assert own(channel) <= FIELDS["channel"]
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == channel["parameters"].keys()
    for operation in described["operations"].values():
        assert own(operation) <= FIELDS["operation"]
        assert operation["action"] in ("send", "receive")
        channel = resolved(described, operation["channel"]["$ref"])
        names = [each["$ref"].rpartition("/")[2] for each in operation["messages"]]
        assert names == list(channel["messages"])
    for name, message in described["components"]["messages"].items():
        assert own(message) <= FIELDS["message"]
        assert message["name"] == name
    for group in (
        described["channels"],
        described["operations"],
        *described["components"].values(),
    ):
        assert all(KEY.match(name) for name in group)


def test_every_reference_of_the_document_resolves(described: JsonObject) -> None:
    found = set(references(described))

    assert len(found) > 100
    for reference in found:
        resolved(described, reference)


def test_every_schema_of_the_document_is_valid(described: JsonObject) -> None:
    for name in described["components"]["messages"]:
        validator(described, name)
    for schema in described["components"]["schemas"].values():
        jsonschema_rs.meta.validate(
            {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        )


def test_there_is_a_channel_for_every_mode_with_all_its_messages(described: JsonObject) -> None:
    carried = {mode: set(found["messages"]) for mode, found in described["channels"].items()}

    assert carried.keys() == set(MODES)
    assert carried["values"] == {"state.snapshot", "batch"}
    assert carried["messages"] == {"ai.message.chunk", "batch"}
    assert carried["updates"] == {t for t in EVENT_TYPES if is_update(t)} | {
        "run.annotated",
        "batch",
    }
    lines = {f"kahn.{name}" for name in EVENT_NAMES}
    assert carried["debug"] == EVENT_TYPES | lines | {"vendor.event", "run.annotated", "batch"}


@pytest.mark.parametrize("mode", MODES)
def test_the_frames_of_a_run_match_their_description(
    acme: Wire, described: JsonObject, mode: str
) -> None:
    run_id = acme.run("conformance-agent-reasoning")["runId"]

    frames = acme.frames(run_id, streamMode=mode)

    assert frames or mode == "messages"
    for frame in frames:
        assert_described(described, mode, frame)


def test_a_batch_and_an_annotation_match_their_description(
    acme: Wire, described: JsonObject
) -> None:
    with (
        live_run(acme) as run_id,
        acme.stream(run_id, streamMode="debug", bufferMs=50) as frames,
    ):
        found = until(frames, "batch")
        annotate(acme, run_id, {"kind": "label", "label": "tone"})
        found += until(frames, "run.annotated")

    for frame in found:
        assert_described(described, "debug", frame)
    assert found[-1].id == ""


def test_the_frames_of_an_observed_run_match_their_description(
    acme: Wire, described: JsonObject
) -> None:
    run_id = push_run(acme, *KahnRun().whole())

    frames = acme.frames(run_id, streamMode="debug")

    assert "kahn.agent_run_start" in {frame.event for frame in frames}
    for frame in frames:
        assert_described(described, "debug", frame)


def test_a_message_of_another_form_is_refused(described: JsonObject) -> None:
    assert not validator(described, "run.annotated").is_valid({"annotationId": "a"})
    assert not validator(described, "run.started").is_valid({"type": "run.started"})
    assert not validator(described, "batch").is_valid({})


def assert_described(described: JsonObject, mode: str, frame: Frame) -> None:
    assert frame.event in described["channels"][mode]["messages"]
    message = described["components"]["messages"][frame.event]
    assert bool(frame.id) == ("id" in message["x-sse"])
    errors = validator(described, frame.event).iter_errors(frame.json)
    assert [error.message for error in errors] == []


def test_discovery_lists_feedback_under_host_too(anonymous: Wire) -> None:
    found = anonymous.document("/.well-known/openwop")

    assert found["feedback"]["supported"] is True
    assert found["host"] == {"feedback": found["feedback"]}
    assert "host" not in found["capabilities"]


@pytest.mark.parametrize(
    ("config", "is_valid"),
    [
        ({}, True),
        ({"mockReasoning": True, "mockConfidence": 0.5}, True),
        ({"mockReasoning": {"summary": "s", "streamChunks": ["a"]}}, True),
        ({"mockToolCalls": [{"toolId": "t", "result": None}]}, True),
        ({"mockToolCalls": [{"toolId": "t"}]}, False),
        ({"mockConfidence": 1.5}, False),
        ({"mockHandoff": {}}, False),
        ({"mockReasonning": True}, False),
    ],
)
def test_the_config_of_the_mock_agent_has_a_schema(
    anonymous: Wire, config: JsonObject, is_valid: bool
) -> None:
    schema = anonymous.document("/v1/schemas/core-conformance-mock-agent-config.json")

    assert jsonschema_rs.Draft202012Validator(schema).is_valid(config) == is_valid
