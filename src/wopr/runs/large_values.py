"""Large values of a run: stored once as artifacts. Events and snapshots refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from wopr.engine.interrupts import HELD_OUTPUTS
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.errors import Unavailable
from wopr.protocol.references import (
    insert_references,
    reference_to,
    references_in,
    resolve_references,
)
from wopr.protocol.runs import RunSnapshot
from wopr.store.port import Artifact

T = TypeVar("T")

# Estimated bytes of an array, of an object with few members, and of an element.
_ARRAY: Final = 72
_OBJECT: Final = 150
_ELEMENT: Final = 56
# The factor for small documents, which are not examined.
_SMALL_BYTES: Final = 1024
_SMALL_FACTOR: Final = 4

# Members of payloads that are values, and members whose own members are values. Readers of other
# members rely on their shape, so those stay in the event.
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "variable.changed": ("next", "previous"),
    "channel.written": ("value",),
    "approval.received": ("editedArtifactData",),
}
_MAPS: Final[Mapping[str, tuple[str, ...]]] = {
    "run.started": ("inputs",),
    "run.completed": ("outputs",),
    "node.completed": ("outputs",),
    "node.suspended": (HELD_OUTPUTS,),
    "node.resumed": ("resumeValue",),
    "interrupt.resolved": ("resumeValue",),
}
# Members of a snapshot that can have references, and other members with data of users.
_REFERRING: Final = ("inputs", "outputs", "variables", "channels")
_ESCAPED: Final = ("metadata", "configurable", "interrupt")


def memory_of(body: bytes) -> int:
    """Estimate the memory of a JSON document once it is decoded, within a factor of about two.

    Punctuation inside of strings counts too, so the estimate of a text can be higher.
    """
    if len(body) < _SMALL_BYTES:
        return len(body) * _SMALL_FACTOR
    arrays, objects, elements = body.count(b"["), body.count(b"{"), body.count(b",")
    return len(body) + arrays * _ARRAY + objects * _OBJECT + elements * _ELEMENT


class Artifacts(Protocol):
    """The part of the store that holds artifacts."""

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of a run, or None."""
        ...


@dataclass(slots=True)
class LargeValues:
    """The values of one run that are stored as artifacts.

    The state of a run in memory has the values themselves, so expressions, reducers and nodes need
    not handle references. Equal values are one object. The limit of the run's data bounds `values`.
    """

    # Artifact id to value.
    values: dict[str, Json] = field(default_factory=dict[str, Json])
    # The `id()` of each of these values to its reference.
    references: dict[int, JsonObject] = field(default_factory=dict[int, JsonObject])
    # Bytes of these values.
    size: int = 0
    # Whether user data of the run looks like a reference.
    has_marks: bool = False
    # Bytes that these values take in memory, estimated.
    memory: int = 0

    def copy(self) -> LargeValues:
        """Return a copy for a batch. It replaces the original after the commit."""
        values, references = dict(self.values), dict(self.references)
        return LargeValues(values, references, self.size, self.has_marks, self.memory)

    def extract(
        self, event_type: str, payload: JsonObject, most_bytes: int
    ) -> tuple[JsonObject, JsonObject, list[tuple[JsonObject, bytes]]]:
        """Move values of more than `most_bytes` out of a payload.

        Returns the payload as it is folded, the payload as it is stored, and the new values. A
        value that is equal to a known one is replaced by it in the folded payload.
        """
        new: list[tuple[JsonObject, bytes]] = []
        changed: JsonObject = {}
        for name in _VALUES.get(event_type, ()):
            if name in payload and payload.get("reducer") != "message":
                changed[name] = self._extract_value(payload[name], most_bytes, new)
        for name in _MAPS.get(event_type, ()):
            value: Json = payload.get(name)
            if is_object(value):
                # Without a primary node, the outputs of a run are the outputs of nodes.
                splits = event_type == "run.completed"
                changed[name] = {
                    key: self._extract_value(each, most_bytes, new, splits=splits)
                    for key, each in value.items()
                }
            elif name in payload:
                changed[name] = self._extract_value(value, most_bytes, new)
        folded = payload | changed
        stored = {
            name: insert_references(value, self.references if name in changed else {})
            for name, value in folded.items()
        }
        return folded, stored, new

    def _extract_value(
        self,
        value: Json,
        most_bytes: int,
        new: list[tuple[JsonObject, bytes]],
        *,
        splits: bool = False,
    ) -> Json:
        """Return the value, or a known value that is equal to it.

        With `splits`, the members of a new object are the new values instead of the object.
        """
        if id(value) in self.references or isinstance(value, int | float | None):
            return value
        body = msgspec.json.encode(value)
        if len(body) <= most_bytes:
            return value
        reference = reference_to(body)
        if reference["artifactId"] not in self.values:
            if splits and is_object(value):
                return {
                    key: self._extract_value(each, most_bytes, new) for key, each in value.items()
                }
            new.append((reference, body))
            self._add(reference, value, body)
        return self.values[reference["artifactId"]]

    def _add(self, reference: JsonObject, value: Json, body: bytes) -> None:
        self.values[reference["artifactId"]] = value
        self.references[id(value)] = reference
        self.size += reference["bytes"]
        self.memory += memory_of(body)

    async def resolve(self, store: Artifacts, tenant: str, run_id: str, stored: T) -> T:
        """Return a stored payload of the run with the values that it refers to.

        Raises `Unavailable` when an artifact is missing.
        """
        self.has_marks = True
        for reference in references_in(stored):
            name: str = reference["artifactId"]
            if name in self.values:
                continue
            found = await store.artifact(tenant, run_id, name)
            if found is None:
                raise Unavailable(f"The artifact {name} of run {run_id} is missing in the store.")
            self._add(reference, msgspec.json.decode(found.body), found.body)
        whole: T = resolve_references(stored, self.values)
        return whole

    def state_with_references(self, state: RunState) -> RunState:
        """Return a state with references in its outputs, variables and channels."""
        if not self.references and not self.has_marks:
            return state
        return replace(
            state,
            outputs=insert_references(state.outputs, self.references),
            variables=insert_references(state.variables, self.references),
            channels=insert_references(state.channels, self.references),
        )

    def snapshot_with_references(self, view: RunSnapshot) -> RunSnapshot:
        """Return a snapshot with references in place of the values that are stored as artifacts."""
        if not self.references and not self.has_marks:
            return view
        changed: dict[str, Json] = {}
        for names, references in ((_REFERRING, self.references), (_ESCAPED, {})):
            for name in names:
                changed[name] = insert_references(getattr(view, name), references)
        nodes = view.node_states
        if not isinstance(nodes, Unset):
            changed["node_states"] = {
                name: node
                if isinstance(node.outputs, Unset)
                else replace(node, outputs=insert_references(node.outputs, self.references))
                for name, node in nodes.items()
            }
        return replace(view, **changed)
