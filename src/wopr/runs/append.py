"""The only way to append events to a log.

Every event of every run passes `Appender.append`, also in forks and in observed runs. It checks
that the node type may emit the event and that the host advertises its capability, masks values that
are marked sensitive, redacts secrets, and encodes the event once. The store and all readers get
these bytes.

`EventBatch` creates the events of the runs of this host: it stamps their id, sequence, time and
cause. A copy for a fork keeps the time of its source. `wopr.kahn.observed.run` creates the events
of observed runs, which keep the time of their KAHN lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from wopr.engine.fold.fold import fold, keeps_payload
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.engine.plan import Plan
from wopr.engine.state import RunState
from wopr.protocol.agents import agent_of_payload
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode, to_iso
from wopr.protocol.emitters import is_advertised, may_emit
from wopr.protocol.errors import QuotaExceeded, Unavailable
from wopr.protocol.events import EVENT_TYPES, RunEvent, is_known_type
from wopr.protocol.events.payloads import payload_fault
from wopr.protocol.offloading import WorkFailed, offload_to_thread
from wopr.protocol.references import CONTENT_TYPE, REFERENCE_MARK
from wopr.runs.large_values import LargeValues, memory_of
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.redact import LARGE_BYTES, Redactor
from wopr.security.shapes import names_secret
from wopr.store.port import Artifact, Batch, PendingCommand, StoredEvent
from wopr.store.port.audit import AuditDraft

# Most events and bytes of one append. Other runs commit between two appends.
MAX_BATCH_EVENTS = 200
MAX_BATCH_BYTES = 1024 * 1024
# A thread redacts the large parts of large events. Parts of at most this size stay.
PART_BYTES = 16 * 1024
FEW_MEMBERS = 16
# Outputs of this size are written even when the tenant is beyond its quotas.
SMALL_OUTPUTS_BYTES = 1024

# Events that can open or close an interrupt.
_INBOX_CHANGES = frozenset(
    {
        "node.suspended",
        "node.resumed",
        "node.failed",
        "node.cancelled",
        "approval.granted",
        "approval.rejected",
        "approval.received",
    }
)
# Checks of a run as a whole, whether or not an agent acts in it.
_RUN_CHECKS = frozenset({"cap.breached", "eval.scored"})
# Events of a node's execution. They have the code version of the process that executed the node.
_EXECUTIONS = frozenset(
    {"node.started", "node.completed", "node.failed", "node.retried", "node.suspended"}
)
# Events that end a node or a run are written even when they exceed the limits.
_ENDS = frozenset({"node.failed", "node.cancelled", "run.failed", "run.cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLimits:
    """The most bytes that a value, an event and all data of one run may have, as JSON.

    Values of more than `inline_bytes` are stored as artifacts; 0 keeps all values in the events.
    """

    value_bytes: int = 4 * 1024 * 1024
    event_bytes: int = 10 * 1024 * 1024
    run_bytes: int = 32 * 1024 * 1024
    inline_bytes: int = 256 * 1024

    def check_value(self, size: int) -> None:
        """Raise `NodeFailure` for a value that is too large."""
        if size > self.value_bytes:
            raise _too_large("value_too_large", "a value", size, self.value_bytes, "VALUE")

    def check_event(self, event_type: str, size: int) -> None:
        """Raise `NodeFailure` for an event that is too large."""
        if size > self.event_bytes and event_type not in _ENDS:
            what = f"the event {event_type}"
            raise _too_large("event_too_large", what, size, self.event_bytes, "EVENT")

    def check_run(self, size: int) -> None:
        """Raise `NodeFailure` for a run with too much data."""
        if size > self.run_bytes:
            what = "the data of the run"
            raise _too_large("run_data_limit_exceeded", what, size, self.run_bytes, "RUN")


def _too_large(code: str, what: str, size: int, limit: int, setting: str) -> NodeFailure:
    return NodeFailure(
        f"{what} has {size} bytes, and the limit is {limit} (WOPR_MAX_{setting}_BYTES)",
        code=code,
        retryable=False,
        details={"size": size, "limit": limit},
    )


class Guard:
    """Checks that an event type is advertised and that a node type may emit it."""

    def __init__(self, discovery: JsonObject) -> None:
        self._unadvertised = frozenset(
            event_type for event_type in EVENT_TYPES if not is_advertised(event_type, discovery)
        )

    def advertises(self, event_type: str) -> bool:
        """Return whether the discovery document lets this host emit events of this type."""
        return event_type not in self._unadvertised

    def check(self, type_id: str, event_type: str, payload: Json) -> None:
        """Raise `NodeFailure` when a node of this type may not emit this event or payload."""
        if not is_known_type(event_type):
            raise _refusal(f"{event_type} is neither a protocol event type nor a valid vendor type")
        if not may_emit(type_id, event_type):
            raise _refusal(f"a node of type {type_id} may not emit {event_type}")
        if not self.advertises(event_type):
            message = f"this host does not advertise the capability that {event_type} needs"
            raise _refusal(message, code="capability_not_provided")
        fault = payload_fault(event_type, payload)
        if fault is not None:
            raise _refusal(fault)


def _refusal(message: str, code: str = "validation_error") -> NodeFailure:
    return NodeFailure(message, code=code, retryable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRules:
    """Checks and settings for every event of one tenant's runs.

    `limits` is None for observed runs, because another system made their events. `refusal` is the
    error for nodes of a tenant that is far beyond a quota of bytes.
    """

    guard: Guard
    redactor: Redactor
    new_id: Callable[[], str]
    limits: DataLimits | None = None
    code_version: str = ""
    refusal: QuotaExceeded | None = None


class Appender:
    """Collects the events of one append, in order.

    A subclass adds what depends on the kind of run: masking, large values and folding.
    """

    def __init__(self, rules: AppendRules) -> None:
        self.rules = rules
        self.events: list[StoredEvent] = []
        # Bytes of the events of this batch, as they are stored and as they were encoded.
        self.size = 0
        self.encoded_bytes = 0
        # Estimated bytes that these events add to the state in memory.
        self.memory = 0

    def append(self, event: RunEvent, *, emitter: str = "", is_copy: bool = False) -> RunEvent:
        """Check, mask, redact and encode one event, and return it as it is folded.

        `emitter` is the type of the node that emits the event. Raises `NodeFailure` when a node of
        this type may not emit it, or when this host does not advertise the capability. Without an
        emitter the event is the host's own. A copy from another log is not measured again, because
        other limits may have applied to that log.
        """
        if emitter:
            self.rules.guard.check(emitter, event.type, event.payload)
        if not is_copy:
            event = self._mask(event)
        body = encode(event)
        payload = self._redact(event.payload, body)
        if payload is not event.payload:
            event = replace(event, payload=payload)
            body = encode(event)
        if self.rules.limits is not None and not is_copy:
            self.rules.limits.check_event(event.type, len(body))
        self.encoded_bytes += len(body)
        event, body = self._extract_large_values(event, body)
        self.size += len(body)
        if keeps_payload(event.type):
            self.memory += memory_of(body)
        self.events.append(StoredEvent(sequence=event.sequence, type=event.type, body=body))
        self._fold(event)
        return event

    def _mask(self, event: RunEvent) -> RunEvent:
        """Return the event without the values that the workflow marks as sensitive."""
        return event

    def _redact(self, payload: JsonObject, body: bytes) -> JsonObject:
        """Return the payload without secrets."""
        redactor = self.rules.redactor
        return redactor.json(payload) if redactor.may_hold_secret(body) else payload

    def _extract_large_values(self, event: RunEvent, body: bytes) -> tuple[RunEvent, bytes]:
        """Return the event as it is folded, and its bytes as they are stored."""
        return event, body

    def _fold(self, event: RunEvent) -> None:
        """Fold the event into the state of its run."""


class EventBatch(Appender):
    """Events that one step of one run appends together, and the state that they lead to."""

    # Larger events are redacted in a thread. The batch is then made once more with the result.
    offloaded_bytes = LARGE_BYTES

    def __init__(
        self,
        state: RunState,
        rules: AppendRules,
        *,
        sensitive: SensitiveValues,
        now: int,
        log_bytes: int = 0,
        large_values: LargeValues | None = None,
    ) -> None:
        super().__init__(rules)
        # Bytes of the run's data, including this batch.
        self.size = log_bytes
        # Values of the run that are artifacts. Copied before this batch adds one.
        self.large_values = large_values or LargeValues()
        self._owns_large_values = False
        inline_bytes = 0 if rules.limits is None else rules.limits.inline_bytes
        self._inline_bytes = inline_bytes or sys.maxsize
        self.state = state
        self.first = state.next_sequence
        self.now = now
        self.iso = to_iso(now)
        self.sensitive = sensitive
        # The plan for `state`, unless an event was added since.
        self.plan: Plan | None = None
        self.artifacts: list[Artifact] = []
        # Commands for other runs, new child runs, and audit entries of the same transaction.
        self.commands: list[PendingCommand] = []
        self.children: list[Batch] = []
        self.audits: list[AuditDraft] = []
        # Whether the inbox changes with these events.
        self.changes_inbox = False
        # Whether a client waits for the next steps.
        self.is_urgent = False
        # Whether the events have a check of the run as a whole.
        self.has_run_checks = False
        # Whether the events have a person's response.
        self.is_intervention = False
        # Ids of the agents that act in the events.
        self.agents: set[str] = set()

    def add(
        self,
        event_type: str,
        payload: JsonObject,
        *,
        node_id: str = "",
        causation_id: str = "",
        event_id: str = "",
        emitter: str = "",
    ) -> str:
        """Stamp and append an event, and return its id."""
        state = self.state
        version = self.rules.code_version if event_type in _EXECUTIONS else ""
        event = RunEvent(
            event_id=event_id or self.rules.new_id(),
            run_id=state.identity.run_id,
            type=event_type,
            payload=payload,
            timestamp=self.iso,
            sequence=state.next_sequence,
            node_id=node_id or UNSET,
            causation_id=causation_id or state.last_event_id or UNSET,
            code_version=version or UNSET,
        )
        self.append(event, emitter=emitter)
        return event.event_id

    def add_from_node(
        self,
        event_type: str,
        payload: JsonObject,
        *,
        node_id: str,
        causation_id: str = "",
        event_id: str = "",
    ) -> str:
        """Append an event that a node emits. Raises `NodeFailure` when its type may not emit it."""
        return self.add(
            event_type,
            payload,
            node_id=node_id,
            causation_id=causation_id,
            event_id=event_id,
            emitter=self.state.graph.nodes[node_id].type_id,
        )

    def copy(self, source: RunEvent, ids: dict[str, str]) -> None:
        """Copy an event of another run with a new id, run id and sequence.

        `ids` maps event ids of the source to the ids of their copies, so that causes are kept.
        """
        cause = source.causation_id
        event = replace(
            source,
            event_id=self.rules.new_id(),
            run_id=self.state.identity.run_id,
            sequence=self.state.next_sequence,
            causation_id=cause if isinstance(cause, Unset) else ids.get(cause, cause),
        )
        ids[source.event_id] = event.event_id
        self.append(event, is_copy=True)

    @property
    def is_full(self) -> bool:
        """Return whether further events must go into the next batch.

        A value that is stored as an artifact counts in full, because its encoding takes as long.
        """
        return len(self.events) >= MAX_BATCH_EVENTS or self.encoded_bytes > MAX_BATCH_BYTES

    def check_quota(self) -> None:
        """Raise `NodeFailure` when the tenant is far beyond a quota of bytes."""
        refusal = self.rules.refusal
        if refusal is not None:
            raise NodeFailure(
                refusal.message,
                code=refusal.code,
                retryable=False,
                details=dict(refusal.details),
            )

    def check_outcome(self, outcome: Outcome) -> None:
        """Raise `NodeFailure` for a suspension or large outputs far beyond a quota of bytes."""
        if self.rules.refusal is None:
            return
        is_large = (
            isinstance(outcome, Completed)
            and len(encode_value(outcome.outputs)) > SMALL_OUTPUTS_BYTES
        )
        if is_large or isinstance(outcome, Suspended):
            self.check_quota()

    def redact(self, value: Json) -> Json:
        """Return a value that is stored outside of the events, without secrets."""
        return self._redact({"value": value}, encode(value))["value"]

    def _mask(self, event: RunEvent) -> RunEvent:
        payload = self.sensitive.mask(
            self.state, event.type, event.node_id or "", event.payload, self.now
        )
        return event if payload is event.payload else replace(event, payload=payload)

    def _redact(self, payload: JsonObject, body: bytes) -> JsonObject:
        """Return the payload without secrets. A thread examines its large parts.

        Ids that are new in each attempt at a batch are in the small rest, so that an attempt finds
        the results of the previous one.
        """
        if len(body) <= self.offloaded_bytes:
            return super()._redact(payload, body)
        redactor = self.rules.redactor
        parts: list[Json] = []
        rest = _without_large(payload, parts)
        try:
            found: list[Json] = offload_to_thread(
                partial(_redact_parts, redactor, parts), b"redact" + encode(parts)
            )
        except WorkFailed as failed:
            raise Unavailable(f"An event is too large to be redacted now: {failed}") from failed
        clean = redactor.json(rest)
        if clean is rest and not any(found):
            return payload
        pairs = zip(found, parts, strict=True)
        members = [part if clean_part is None else clean_part[0] for clean_part, part in pairs]
        return cast("JsonObject", _with_large(clean, members))

    def _extract_large_values(self, event: RunEvent, body: bytes) -> tuple[RunEvent, bytes]:
        """Move large values into artifacts, and escape user data that looks like a reference."""
        if len(body) <= self._inline_bytes and REFERENCE_MARK not in body:
            return event, body
        if not self._owns_large_values:
            self.large_values, self._owns_large_values = self.large_values.copy(), True
        payload, stored, new = self.large_values.extract(
            event.type, event.payload, self._inline_bytes
        )
        if not new and not self.large_values.references and REFERENCE_MARK not in body:
            return event, body
        self.large_values.has_marks = self.large_values.has_marks or REFERENCE_MARK in body
        for reference, content in new:
            self.size += len(content)
            self.artifacts.append(
                Artifact(
                    artifact_id=reference["artifactId"],
                    node_id=event.node_id or "",
                    artifact_type=CONTENT_TYPE,
                    created_at=self.now,
                    body=content,
                )
            )
        event = replace(event, payload=payload)
        return event, encode(replace(event, payload=stored))

    def _fold(self, event: RunEvent) -> None:
        self.state = fold(self.state, event)
        self.plan = None
        if agent := agent_of_payload(event.payload):
            self.agents.add(agent)
        self.changes_inbox = self.changes_inbox or event.type in _INBOX_CHANGES
        self.has_run_checks = self.has_run_checks or event.type in _RUN_CHECKS


@dataclass(frozen=True, slots=True)
class _Part:
    """The place of a large part in the payload that it was taken out of."""

    number: int


def _without_large(value: JsonObject, parts: list[Json]) -> JsonObject:
    """Copy a payload, with its large parts added to `parts` and their places in the copy.

    Objects with few members are taken apart: their members are parts.
    """
    rest: JsonObject = {}
    for name, member in value.items():
        if not isinstance(member, str | dict | list) or _is_small(name, member):
            rest[name] = member
        elif isinstance(member, dict) and len(cast("JsonObject", member)) <= FEW_MEMBERS:
            rest[name] = _without_large(cast("JsonObject", member), parts)
        else:
            rest[name] = _Part(len(parts))
            parts.append(member)
    return rest


def _is_small(name: str, member: Json) -> bool:
    """Return whether a member is examined at once. The name of a member can make it secret."""
    if isinstance(member, str):
        return len(member) <= PART_BYTES or names_secret(name, member)
    return len(encode(member)) <= PART_BYTES


def _with_large(value: Json, parts: Sequence[Json]) -> Json:
    """Put the parts back in their places."""
    if isinstance(value, _Part):
        return parts[value.number]
    if isinstance(value, dict):
        members = cast("JsonObject", value)
        return {name: _with_large(member, parts) for name, member in members.items()}
    return value


def _redact_parts(redactor: Redactor, parts: Sequence[Json]) -> list[Json]:
    """Return for each part a list with the redacted part, or None when it has no secret."""
    found: list[Json] = []
    for part in parts:
        clean = redactor.json(part) if redactor.may_hold_secret(encode(part)) else part
        found.append(None if clean is part else [clean])
    return found


def as_json(value: Json, limits: DataLimits | None = None) -> Json:
    """Return the value after a round trip through the log.

    The state in memory must be equal to the state that is folded from the stored log. Raises
    `NodeFailure` when the value is not JSON or is larger than the limits.
    """
    return msgspec.json.decode(encode_value(value, limits))


def encode_value(value: Json, limits: DataLimits | None = None) -> bytes:
    """Return a value of a node as JSON, checked like `as_json`."""
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise NodeFailure(f"a value is not JSON: {fault}", retryable=False) from fault
    if limits is not None:
        limits.check_value(len(body))
    return body
