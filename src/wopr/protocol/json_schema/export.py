"""JSON Schemas of the wire documents, generated from the types that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from wopr.protocol.discovery.document import Capabilities
from wopr.protocol.documents import UNSET, Document, JsonObject, Unset
from wopr.protocol.errors import ErrorEnvelope
from wopr.protocol.events import RunEvent
from wopr.protocol.events.payloads import PAYLOADS
from wopr.protocol.interrupts import DATA_TYPES
from wopr.protocol.manifests import AgentInventoryResponse, AgentManifest
from wopr.protocol.resources.annotations import KINDS_WITH_VALUE, Annotation, AnnotationCreate
from wopr.protocol.resources.memory import MemoryEntry
from wopr.protocol.runs import (
    BulkCancel,
    CancelRun,
    Configurable,
    CreateRun,
    EventPage,
    PauseRun,
    RunSnapshot,
    Tag,
)
from wopr.protocol.workflow import WorkflowDefinition

Schema: TypeAlias = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_LOCAL: Final = "#/$defs/{name}"


class RunOptions(Document, frozen=True, kw_only=True):
    """The options of a run in a request."""

    configurable: Configurable | Unset = UNSET
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] | Unset = UNSET
    metadata: JsonObject | Unset = UNSET


_DOCUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "run-event": RunEvent,
    "run-snapshot": RunSnapshot,
    "workflow-definition": WorkflowDefinition,
    "create-run": CreateRun,
    "run-options": RunOptions,
    "error-envelope": ErrorEnvelope,
    "capabilities": Capabilities,
    "pause-run": PauseRun,
    "cancel-run": CancelRun,
    "bulk-cancel": BulkCancel,
    "agent-manifest": AgentManifest,
    "agent-inventory-response": AgentInventoryResponse,
    "memory-entry": MemoryEntry,
    "annotation": Annotation,
    "annotation-create": AnnotationCreate,
}


def export() -> dict[str, Schema]:
    """Return every published schema by its name."""
    documents = {name: document_schema(name) for name in _DOCUMENTS}
    for name in ("annotation", "annotation-create"):
        limit_signal(documents[name]["$defs"]["Signal"])
    documents["event-page"] = _with_id("event-page", _event_page())
    documents["run-event-payloads"] = _with_id("run-event-payloads", _payloads())
    return documents


def document_schema(name: str) -> Schema:
    """Return the published schema of a document."""
    return _with_id(name, _schema(_DOCUMENTS[name]))


def _with_id(name: str, schema: Schema) -> Schema:
    return {"$schema": DIALECT, "$id": f"/v1/schemas/{name}.json", **schema}


def _schema(struct: type[msgspec.Struct]) -> Schema:
    return msgspec.json.schema(struct, ref_template=_LOCAL)


def limit_signal(signal: Schema) -> None:
    """Add to the schema of a signal the rules which field each kind has."""
    signal["allOf"] = [_only_with(kind) for kind in KINDS_WITH_VALUE]


def _only_with(kind: str) -> Schema:
    """Return the rule that the field of a kind is present only for that kind."""
    return {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {"required": [kind]},
        "else": {"properties": {kind: False}},
    }


def _event_page() -> Schema:
    """Return the schema of a page of events. The type of its events is raw JSON."""
    (page, event), shapes = msgspec.json.schema_components(
        [EventPage, RunEvent], ref_template=_LOCAL
    )
    shapes["EventPage"]["properties"]["events"]["items"] = event
    return {**page, "$defs": shapes}


def _payloads() -> Schema:
    """Return one `$defs` entry per event type, with the types that they use."""
    by_type, _, shapes = payload_schemas(_LOCAL)
    return {"title": "RunEventPayloads", "type": "object", "$defs": {**by_type, **shapes}}


def payload_schemas(
    ref_template: str, others: Sequence[type[msgspec.Struct]] = ()
) -> tuple[dict[str, Schema], list[Schema], dict[str, Schema]]:
    """Return the payload schemas by event type, the schemas of `others`, and shared definitions."""
    references, shapes = msgspec.json.schema_components(
        [*PAYLOADS.values(), *DATA_TYPES.values(), *others], ref_template=ref_template
    )
    by_type = dict(zip(PAYLOADS, references, strict=False))
    # The struct checks the data of an interrupt by its kind, which its own schema does not express.
    place = len(PAYLOADS) + len(DATA_TYPES)
    kinds = list(references[len(PAYLOADS) : place])
    shapes["InterruptPayload"]["properties"]["data"] = {"oneOf": kinds}
    return by_type, list(references[place:]), shapes
