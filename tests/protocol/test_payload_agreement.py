from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events.payloads import PAYLOADS
from wopr.protocol.interrupts import DATA_TYPES

if TYPE_CHECKING:
    from tests.protocol.conftest import Official

# Conversations have two published shapes; the strict one is a case of the loose one.
STRICT = {
    "conversation.opened": "conversation-event.schema.json#/$defs/ConversationOpenedPayload",
    "conversation.exchanged": "conversation-event.schema.json#/$defs/ConversationExchangedPayload",
    "conversation.closed": "conversation-event.schema.json#/$defs/ConversationClosedPayload",
}
# Fields that the specification, a conformance scenario or this host adds to an open payload.
EXTRAS = {
    "run.started": {"configurable", "workflowVersion"},
    "run.paused": {"drainPolicy"},
    "run.resumed": {"reason"},
    "node.started": {"agent"},
    "node.completed": {"agent"},
    "node.suspended": {"reason", "agentId", "threshold", "observed", "decision"},
    "interrupt.resolved": {
        *("resolvedAt", "resolvedBy", "outcome", "reason"),
        *("action", "refineFeedback", "editedArtifactData"),
    },
    "agent.reasoned": {"tokenCount"},
    "agent.handoff": {"context"},
    "agent.decided": {"reasoning"},
}
# Values for which the contract overrides the published pattern or enum.
WIDER = {
    "channel.written.reducer": "message",
    "cap.breached.kind": "confidence-escalation-suppressed",
}
# Published as a union of types; ours selects the type by kind, and each is compared below.
BY_KIND = {"interrupt.requested.data"}

EVERY_JSON = {"object", "array", "string", "number", "boolean", "null"}
BOUNDS = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "format",
)


class Comparison:
    """Compare our schema with the published one, and name each difference."""

    def __init__(self, official: Official, shapes: dict[str, JsonObject]) -> None:
        self.official = official
        self.shapes = shapes

    def differences(
        self, path: str, ours: JsonObject, theirs: JsonObject, base: str
    ) -> Iterator[str]:
        if path in BY_KIND:
            return
        ours = self._ours(ours)
        theirs, base = self._theirs(theirs, base)
        if "oneOf" in theirs:
            yield from self._unions(path, ours, theirs, base)
            return
        ours, may_be_null = _without_null(ours)
        types, null_wanted = _types(theirs)
        if may_be_null != null_wanted:
            yield f"{path}: null"
        yield from _scalars(path, ours, theirs, types)
        if "properties" in theirs or "properties" in ours:
            yield from self._objects(path, ours, theirs, base)
        if isinstance(theirs.get("items"), dict):
            yield from self.differences(f"{path}[]", ours["items"], theirs["items"], base)
        if isinstance(theirs.get("additionalProperties"), dict):
            rest = ours["additionalProperties"], theirs["additionalProperties"]
            yield from self.differences(f"{path}.*", *rest, base)

    def _ours(self, schema: JsonObject) -> JsonObject:
        if "$ref" in schema:
            return self.shapes[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def _theirs(self, schema: JsonObject, base: str) -> tuple[JsonObject, str]:
        while "$ref" in schema:
            schema, base = self.official.find(schema["$ref"], base)
        return schema, base

    def _objects(self, path: str, ours: JsonObject, theirs: JsonObject, base: str) -> Iterator[str]:
        mine, published = ours.get("properties", {}), theirs.get("properties", {})
        if set(ours.get("required", [])) != set(theirs.get("required", [])):
            yield f"{path}: required {ours.get('required')} is not {theirs.get('required')}"
        if (ours.get("additionalProperties") is False) != (
            theirs.get("additionalProperties") is False
        ):
            yield f"{path}: closedness"
        if set(mine) - EXTRAS.get(path, set()) != set(published):
            yield f"{path}: fields {sorted(set(mine) ^ set(published))}"
        for name in set(mine) & set(published):
            yield from self.differences(f"{path}.{name}", mine[name], published[name], base)

    def _unions(self, path: str, ours: JsonObject, theirs: JsonObject, base: str) -> Iterator[str]:
        mine = {_kind(shape): shape for shape in map(self._ours, ours["anyOf"])}
        published = {_kind(shape): shape for shape in theirs["oneOf"]}
        if mine.keys() != published.keys():
            yield f"{path}: kinds {sorted(mine.keys() ^ published.keys())}"
        for kind in mine.keys() & published.keys():
            yield from self.differences(f"{path}<{kind}>", mine[kind], published[kind], base)


def _kind(shape: JsonObject) -> str:
    tag = shape["properties"]["kind"]
    return str(tag["const"] if "const" in tag else tag["enum"][0])


def _without_null(schema: JsonObject) -> tuple[JsonObject, bool]:
    branches = [branch for branch in schema.get("anyOf", []) if branch != {"type": "null"}]
    if len(branches) == 1:
        return branches[0], True
    return schema, False


def _types(schema: JsonObject) -> tuple[set[str], bool]:
    declared = schema.get("type", [])
    types = {declared} if isinstance(declared, str) else set(declared)
    if types == EVERY_JSON:
        return set(), False
    return types - {"null"}, "null" in types


def _values(schema: JsonObject) -> list[Json]:
    return schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []


def _scalars(path: str, ours: JsonObject, theirs: JsonObject, types: set[str]) -> Iterator[str]:
    named = {value for branch in theirs.get("anyOf", []) for value in _values(branch)}
    if named:
        if not all(re.search(ours["pattern"], value) for value in named):
            yield f"{path}: values {sorted(named)}"
        return
    wider = {WIDER[path]} if path in WIDER else set()
    if set(_values(ours)) - wider != set(_values(theirs)):
        yield f"{path}: values {_values(ours)} are not {_values(theirs)}"
    if not _values(ours) and ({ours["type"]} if "type" in ours else set()) != types:
        yield f"{path}: type {ours.get('type')} is not {types}"
    if not wider and ours.get("pattern") != theirs.get("pattern"):
        yield f"{path}: pattern {ours.get('pattern')} is not {theirs.get('pattern')}"
    for bound in BOUNDS:
        if ours.get(bound) != theirs.get(bound):
            yield f"{path}: {bound} {ours.get(bound)} is not {theirs.get(bound)}"


def differences(official: Official, path: str, struct: Json, reference: str) -> list[str]:
    schema = msgspec.json.schema(struct)
    theirs, base = official.find(reference)
    comparison = Comparison(official, schema["$defs"])
    return list(comparison.differences(path, schema, theirs, base))


@pytest.mark.parametrize("event_type", sorted(PAYLOADS))
def test_a_payload_equals_the_published_one(event_type: str, official: Official) -> None:
    index, _ = official.find("run-event-payloads.schema.json#/$defs/_typeIndex")
    published = f"run-event-payloads.schema.json{index['properties'][event_type]['$ref']}"

    found = differences(
        official, event_type, PAYLOADS[event_type], STRICT.get(event_type, published)
    )

    assert found == []


@pytest.mark.parametrize("kind", sorted(DATA_TYPES))
def test_the_data_of_an_interrupt_equals_the_published_one(kind: str, official: Official) -> None:
    struct = next(struct for name, struct in DATA_TYPES.items() if name == kind)

    found = differences(
        official, kind, struct, f"suspend-request.schema.json#/$defs/{struct.__name__}"
    )

    assert found == []


def test_the_published_index_names_exactly_our_types(official: Official) -> None:
    index, _ = official.find("run-event-payloads.schema.json#/$defs/_typeIndex")

    assert index["properties"].keys() == PAYLOADS.keys()


def test_the_comparison_detects_a_difference(official: Official) -> None:
    reference = "run-event-payloads.schema.json#/$defs/nodeFailed"

    found = differences(official, "node.dispatched", PAYLOADS["node.dispatched"], reference)

    assert any("required" in difference for difference in found)
    assert any("closedness" in difference for difference in found)
