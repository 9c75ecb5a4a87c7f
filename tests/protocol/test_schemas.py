from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema_rs
import msgspec
import pytest

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events.payloads import PAYLOADS
from wopr.protocol.json_schema.export import DIALECT, export
from wopr.protocol.workflow import WorkflowDefinition

if TYPE_CHECKING:
    from tests.protocol.conftest import Official, Sample

NAMES = {
    "run-event",
    "run-event-payloads",
    "run-snapshot",
    "workflow-definition",
    "create-run",
    "run-options",
    "error-envelope",
    "capabilities",
    "pause-run",
    "cancel-run",
    "bulk-cancel",
    "event-page",
    "agent-manifest",
    "agent-inventory-response",
    "memory-entry",
    "annotation",
    "annotation-create",
}
CLOSED: dict[str, JsonObject] = {
    "create-run": {"workflowId": "noop"},
    "error-envelope": {"error": "not_found", "message": "no such run"},
    "pause-run": {},
    "cancel-run": {},
    "bulk-cancel": {"runIds": ["run-1"]},
    "agent-manifest": {"agentId": "local.acme.a", "persona": "A", "modelClass": "general"},
    "agent-inventory-response": {"agents": [], "total": 0},
    "annotation-create": {"signal": {"kind": "flag"}},
    "memory-entry": {"id": "m", "content": "", "tags": [], "createdAt": "2026-01-01T00:00:00Z"},
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, JsonObject]:
    return export()


def fault(schema: JsonObject, document: Json) -> str | None:
    errors = jsonschema_rs.validator_for(schema, offline=True).iter_errors(document)
    return next((error.message for error in errors), None)


def test_the_published_names_are_stable(schemas: dict[str, JsonObject]) -> None:
    assert schemas.keys() == NAMES
    assert all(schema["$schema"] == DIALECT for schema in schemas.values())
    assert {schema["$id"] for schema in schemas.values()} == {
        f"/v1/schemas/{name}.json" for name in NAMES
    }


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_exported_schema_is_valid(name: str, schemas: dict[str, JsonObject]) -> None:
    assert jsonschema_rs.meta.is_valid(schemas[name])


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_a_closed_document_refuses_an_unknown_field(
    name: str, schemas: dict[str, JsonObject]
) -> None:
    schema, document = schemas[name], CLOSED[name]

    assert fault(schema, document) is None
    assert "intruder" in str(fault(schema, {**document, "intruder": 1}))


@pytest.mark.parametrize("full", [False, True], ids=["least", "full"])
@pytest.mark.parametrize("event_type", sorted(PAYLOADS))
def test_the_payload_schema_has_an_entry_for_each_event_type(
    event_type: str, full: bool, sample: type[Sample], schemas: dict[str, JsonObject]
) -> None:
    entry = {**schemas["run-event-payloads"], "$ref": f"#/$defs/{event_type}"}

    assert fault(entry, sample(PAYLOADS[event_type], full=full).document) is None


def test_a_page_of_events_is_described_down_to_the_event(schemas: dict[str, JsonObject]) -> None:
    page: JsonObject = {
        "runId": "run-1",
        "events": [{"eventId": "e"}],
        "lastEventSeq": 0,
        "runStatus": "running",
        "isTerminal": False,
        "isComplete": False,
    }

    assert fault(schemas["event-page"], {**page, "events": []}) is None
    assert fault(schemas["event-page"], page) == '"runId" is a required property'


def test_options_define_the_reserved_keys_and_allow_others(schemas: dict[str, JsonObject]) -> None:
    schema = schemas["run-options"]

    assert fault(schema, {"configurable": {"recursionLimit": 1, "acme.mode": "x"}}) is None
    assert fault(schema, {"configurable": {"recursionLimit": 0}}) is not None
    assert fault(schema, {"tags": ["x"] * 101}) is not None


def test_the_published_workflows_are_parsed_and_written_as_valid_definitions(
    official: Official,
) -> None:
    workflows = list(official.workflows())

    faults = {
        workflow["id"]: official.fault("workflow-definition.schema.json", written(workflow))
        for workflow in workflows
    }

    assert len(workflows) > 70
    assert {name: found for name, found in faults.items() if found is not None} == {}


def test_the_published_workflows_satisfy_our_own_schema(
    official: Official, schemas: dict[str, JsonObject]
) -> None:
    schema = schemas["workflow-definition"]

    found = {workflow["id"]: fault(schema, workflow) for workflow in official.workflows()}

    assert set(found.values()) == {None}


def written(workflow: JsonObject) -> Json:
    definition = msgspec.convert(workflow, WorkflowDefinition)
    return msgspec.json.decode(msgspec.json.encode(definition))
