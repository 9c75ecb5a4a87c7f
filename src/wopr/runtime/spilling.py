"""Large values of a run: stored once as artifacts, and referred to in its events and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from wopr.engine.expression_tokens import is_object
from wopr.engine.interrupts import HELD_OUTPUTS
from wopr.engine.state import RunState
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import Unavailable
from wopr.protocol.references import reference_to, references_in, referring, resolved
from wopr.protocol.runs import RunSnapshot
from wopr.store.port import Artifact

T = TypeVar("T")

# Bytes of an array, of an object with few members, and of an element: the object and its place.
_ARRAY: Final = 72
_OBJECT: Final = 150
_ELEMENT: Final = 56
# The factor for documents that are too small to be worth a look.
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
        """An artifact of the run, or None."""
        ...


@dataclass(slots=True)
class Spilled:
    """The values of one run that are stored as artifacts.

    The state of a run in memory has the values themselves, so expressions, reducers and nodes need
    not know of references. Equal values are one object here: what `values` holds is bounded by the
    limit of the run's data.
    """

    # Artifact id to value.
    values: dict[str, Json] = field(default_factory=dict[str, Json])
    # The identity of each of these values to its reference.
    references: dict[int, JsonObject] = field(default_factory=dict[int, JsonObject])
    # Bytes of these values.
    size: int = 0
    # Whether user data of the run looks like a reference.
    has_marks: bool = False
    # Bytes that these values take in memory, estimated.
    memory: int = 0

    def copy(self) -> Spilled:
        """A copy that a burst adds to; it takes the place of the original when it is stored."""
        values, references = dict(self.values), dict(self.references)
        return Spilled(values, references, self.size, self.has_marks, self.memory)

    def spill(
        self, event_type: str, payload: JsonObject, most_bytes: int
    ) -> tuple[JsonObject, JsonObject, list[tuple[JsonObject, bytes]]]:
        """Find the values of a payload that are larger than `most_bytes`.

        Returns the payload as it is folded, the payload as it is stored, and the new values. A value
        that is equal to a known one is replaced by it in the folded payload.
        """
        made: list[tuple[JsonObject, bytes]] = []
        changed: JsonObject = {}
        for name in _VALUES.get(event_type, ()):
            if name in payload and payload.get("reducer") != "message":
                changed[name] = self._known(payload[name], most_bytes, made)
        for name in _MAPS.get(event_type, ()):
            value: Json = payload.get(name)
            if is_object(value):
                # Without a primary node, the outputs of a run are the outputs of nodes.
                parts = event_type == "run.completed"
                changed[name] = {
                    key: self._known(each, most_bytes, made, parts=parts)
                    for key, each in value.items()
                }
            elif name in payload:
                changed[name] = self._known(value, most_bytes, made)
        folded = payload | changed
        stored = {
            name: referring(value, self.references if name in changed else {})
            for name, value in folded.items()
        }
        return folded, stored, made

    def _known(
        self,
        value: Json,
        most_bytes: int,
        made: list[tuple[JsonObject, bytes]],
        *,
        parts: bool = False,
    ) -> Json:
        """The value, or the known one that is equal to it; with `parts` the members of a new one."""
        if id(value) in self.references or isinstance(value, int | float | None):
            return value
        body = msgspec.json.encode(value)
        if len(body) <= most_bytes:
            return value
        reference = reference_to(body)
        if reference["artifactId"] not in self.values:
            if parts and is_object(value):
                return {key: self._known(each, most_bytes, made) for key, each in value.items()}
            made.append((reference, body))
            self._add(reference, value, body)
        return self.values[reference["artifactId"]]

    def _add(self, reference: JsonObject, value: Json, body: bytes) -> None:
        self.values[reference["artifactId"]] = value
        self.references[id(value)] = reference
        self.size += reference["bytes"]
        self.memory += memory_of(body)

    async def resolve(self, store: Artifacts, tenant: str, run_id: str, stored: T) -> T:
        """Read the values that a stored payload of the run refers to, and put them in.

        Raises `Unavailable` when an artifact is missing.
        """
        self.has_marks = True
        for reference in references_in(stored):
            name: str = reference["artifactId"]
            if name in self.values:
                continue
            found = await store.artifact(tenant, run_id, name)
            if found is None:
                raise Unavailable(f"the artifact {name} of run {run_id} is missing in the store")
            self._add(reference, msgspec.json.decode(found.body), found.body)
        whole: T = resolved(stored, self.values)
        return whole

    def shown_state(self, state: RunState) -> RunState:
        """The state of a run with references in its outputs, variables and channels."""
        if not self.references and not self.has_marks:
            return state
        return replace(
            state,
            outputs=referring(state.outputs, self.references),
            variables=referring(state.variables, self.references),
            channels=referring(state.channels, self.references),
        )

    def shown(self, view: RunSnapshot) -> RunSnapshot:
        """A snapshot with references in place of the values that are stored as artifacts."""
        if not self.references and not self.has_marks:
            return view
        changed: dict[str, Json] = {}
        for names, references in ((_REFERRING, self.references), (_ESCAPED, {})):
            for name in names:
                changed[name] = referring(getattr(view, name), references)
        nodes = view.node_states
        if not isinstance(nodes, Unset):
            changed["node_states"] = {
                name: node
                if isinstance(node.outputs, Unset)
                else replace(node, outputs=referring(node.outputs, self.references))
                for name, node in nodes.items()
            }
        return replace(view, **changed)
