"""Checks of an agent manifest. All faults are reported at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain
from typing import cast

import msgspec

from wopr.protocol.documents import Json, JsonObject, is_object
from wopr.protocol.errors import Refused
from wopr.protocol.json_schema.export import document_schema
from wopr.protocol.json_schema.size import (
    SMALL_STATES,
    SMALL_WEIGHT,
    SchemaLimits,
    measure,
    size_faults,
    weight_of,
)
from wopr.protocol.json_schema.validation import (
    DocumentSchema,
    Fault,
    document_faults,
    faults_error,
    first_faults,
    schema_faults,
)
from wopr.protocol.manifests import HOST_PREFIX, MODEL_CLASSES, AgentManifest

_DEFAULT_LIMITS = SchemaLimits()
# The size of a manifest as JSON, unless the host has another limit.
MAX_BYTES = 256 * 1024
# References to files of a pack, each with the alternative. This host installs no packs.
_REFERENCES = {"systemPromptRef": "give systemPrompt", "evalSuiteRef": "omit it"}
_HANDOFF_REFERENCES = {
    "taskSchemaRef": "give taskSchema",
    "returnSchemaRef": "give returnSchema",
}


def check_manifest(
    document: Json,
    model_classes: Collection[str] | None = None,
    limits: SchemaLimits = _DEFAULT_LIMITS,
    max_bytes: int = MAX_BYTES,
) -> AgentManifest:
    """Return the manifest. Raises `Refused` with every fault in `details.errors`.

    A model class that is not in `model_classes` has the code `unsupported_model_class`. With None
    every class is allowed.
    """
    if too_large := list(_size_faults(document, max_bytes)):
        raise faults_error(too_large, "manifest")
    meaning = first_faults(_meaning_faults(document, limits))
    # The schema's fault at a place with an explained fault is omitted.
    explained = {fault.path for fault in meaning}
    from_schema = document_faults(document, _manifest_schema(), AgentManifest)
    other = (fault for fault in from_schema if fault.path not in explained)
    faults = first_faults(chain(meaning, other))
    if faults:
        raise faults_error(faults, "manifest")
    manifest = msgspec.convert(document, AgentManifest)
    _check_model_class(manifest, model_classes)
    return manifest


def is_small(document: Json) -> bool:
    """Return whether a manifest is checked within a few milliseconds."""
    if weight_of(document, SMALL_WEIGHT) > SMALL_WEIGHT:
        return False
    handoff: Json = document.get("handoff") if is_object(document) else None
    schemas: list[Json] = list(handoff.values()) if is_object(handoff) else []
    return sum(measure(each).states for each in schemas if is_object(each)) <= SMALL_STATES


@cache
def _manifest_schema() -> DocumentSchema:
    return DocumentSchema(document_schema("agent-manifest"))


def _check_model_class(manifest: AgentManifest, model_classes: Collection[str] | None) -> None:
    needed = MODEL_CLASSES[manifest.model_class]
    if model_classes is not None and needed not in model_classes:
        raise Refused(
            f"modelClass: {manifest.model_class} needs models of class {needed}, "
            "which this host does not advertise",
            code="unsupported_model_class",
            field="modelClass",
            modelClass=needed,
            supported=sorted(model_classes),
        )


def _size_faults(document: Json, max_bytes: int) -> Iterator[Fault]:
    """Yield the largest field of a manifest that is too large."""
    size = len(msgspec.json.encode(document))
    if size > max_bytes:
        fields: JsonObject = document if is_object(document) else {}
        sizes = {name: len(msgspec.json.encode(value)) for name, value in fields.items()}
        yield Fault(
            path=max(sizes, key=sizes.__getitem__, default="")[:256],
            message=f"the manifest has {size} bytes, and at most {max_bytes} are allowed",
        )


def _meaning_faults(document: Json, limits: SchemaLimits) -> Iterator[Fault]:
    """Yield the faults that the schema cannot express.

    They are found in the raw document, so that they are reported together with the schema's faults.
    """
    if not isinstance(document, dict):
        return
    manifest = cast("JsonObject", document)
    agent_id = manifest.get("agentId")
    if isinstance(agent_id, str) and agent_id.startswith(HOST_PREFIX):
        yield Fault(
            path="agentId",
            message=f"the prefix {HOST_PREFIX} is reserved for agents of the host",
        )
    yield from _reference_faults(manifest, _REFERENCES, "")
    if ("systemPrompt" in manifest) == ("systemPromptRef" in manifest):
        yield Fault(path="systemPrompt", message="a manifest has exactly one system prompt")
    handoff = manifest.get("handoff")
    if isinstance(handoff, dict):
        yield from _handoff_faults(cast("JsonObject", handoff), limits)


def _handoff_faults(handoff: JsonObject, limits: SchemaLimits) -> Iterator[Fault]:
    yield from _reference_faults(handoff, _HANDOFF_REFERENCES, "handoff.")
    for name in ("taskSchema", "returnSchema"):
        schema: Json = handoff.get(name)
        if is_object(schema):
            sizes = [Fault(path=f"handoff.{name}", message=m) for m in size_faults(schema, limits)]
            yield from sizes or schema_faults(f"handoff.{name}", schema)


def _reference_faults(
    container: JsonObject, references: dict[str, str], prefix: str
) -> Iterator[Fault]:
    for name, instead in references.items():
        if name in container:
            yield Fault(
                path=f"{prefix}{name}",
                message="this host installs manifests without packs, so it cannot resolve "
                f"references: {instead}",
            )
