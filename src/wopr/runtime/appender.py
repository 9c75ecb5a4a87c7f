"""The one appender: every event of every run passes `Appender.write`, observed runs included.

An event is checked (its emitter and its capability), masked where it is marked sensitive, redacted
where it looks like a secret, stamped (id, sequence, time, cause) and encoded once: these bytes are
what is stored and what every reader gets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from wopr.engine.fold import fold, keeps_payload
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.engine.state import RunState
from wopr.protocol.agents import agent_of_payload
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode
from wopr.protocol.emitters import is_advertised, may_emit
from wopr.protocol.errors import QuotaExceeded, Unavailable
from wopr.protocol.events import EVENT_TYPES, RunEvent, is_known_type
from wopr.protocol.offloading import WorkFailed, offload_to_thread
from wopr.protocol.payloads.check import faults
from wopr.protocol.references import CONTENT_TYPE, MARK
from wopr.protocol.times import to_iso
from wopr.runtime.spilling import Spilled, memory_of
from wopr.runtime.vault import Vault
from wopr.security.redact import LARGE_BYTES, Redactor
from wopr.security.shapes import names_secret
from wopr.store.port import Artifact, Batch, StoredEvent, Wish
from wopr.store.port.audit import AuditDraft

# Events and bytes of one append: enough for any ordinary advance, small enough to let others commit.
LARGEST_BURST = 200
LARGEST_BURST_BYTES = 1024 * 1024
# Large events are redacted by a thread, apart from parts of at most this size.
PART_BYTES = 16 * 1024
FEW_MEMBERS = 16

_WAITS = frozenset(
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
# What is on record about a run as a whole, whether or not an agent acts in it.
_AUDITS = frozenset({"cap.breached", "eval.scored"})


# Events of a node's execution. They name the version of the code that executed the node.
_EXECUTIONS = frozenset(
    {"node.started", "node.completed", "node.failed", "node.retried", "node.suspended"}
)


# Outputs of a node that are written beyond the quotas of its tenant. An error has as many bytes.
SMALL_OUTPUTS_BYTES = 1024
# What ends a node or a run is written however large the run's data is.
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
        """Fail the node whose value is too large."""
        if size > self.value_bytes:
            raise _too_large("value_too_large", "a value", size, self.value_bytes, "VALUE")

    def check_event(self, event_type: str, size: int) -> None:
        """Fail the node whose event is too large."""
        if size > self.event_bytes and event_type not in _ENDS:
            what = f"the event {event_type}"
            raise _too_large("event_too_large", what, size, self.event_bytes, "EVENT")

    def check_run(self, size: int) -> None:
        """Fail the node whose run has too much data."""
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
    """What this host lets onto a log: advertised families only, from authorised emitters only."""

    def __init__(self, discovery: JsonObject) -> None:
        self._silent = frozenset(
            event_type for event_type in EVENT_TYPES if not is_advertised(event_type, discovery)
        )

    def advertises(self, event_type: str) -> bool:
        """Tell whether the discovery document lets this host emit events of this type."""
        return event_type not in self._silent

    def check(self, type_id: str, event_type: str, payload: Json) -> None:
        """Fail the node that may not emit this, or not in this form."""
        if not is_known_type(event_type):
            raise _refused(f"{event_type} is neither a protocol event type nor a legal vendor type")
        if not may_emit(type_id, event_type):
            raise _refused(f"a node of type {type_id} may not emit {event_type}")
        if not self.advertises(event_type):
            message = f"this host does not advertise what {event_type} needs"
            raise _refused(message, code="capability_not_provided")
        fault = faults(event_type, payload)
        if fault is not None:
            raise _refused(fault)


def _refused(message: str, code: str = "validation_error") -> NodeFailure:
    return NodeFailure(message, code=code, retryable=False)


class Appender:
    """Redacts and encodes the events of one batch. A subclass stamps them and folds them."""

    def __init__(
        self,
        *,
        redactor: Redactor,
        guard: Guard,
        new_id: Callable[[], str],
        limits: DataLimits | None = None,
    ) -> None:
        self.events: list[StoredEvent] = []
        self.limits = limits
        # Bytes of the events of this batch, as they are stored and as they were encoded.
        self.size = 0
        self.encoded_bytes = 0
        # Bytes that these events add to the state in memory, estimated.
        self.memory = 0
        self.guard = guard
        self.redactor = redactor
        self.new_id = new_id

    def write(self, event: RunEvent) -> RunEvent:
        """Put an event at the end of the batch and return it as it is folded."""
        body = encode(event)
        payload = self._redacted(event.payload, body)
        if payload is not event.payload:
            event = replace(event, payload=payload)
            body = encode(event)
        if self.limits is not None:
            self.limits.check_event(event.type, len(body))
        self.encoded_bytes += len(body)
        event, body = self._stored(event, body)
        self.size += len(body)
        if keeps_payload(event.type):
            self.memory += memory_of(body)
        self.events.append(StoredEvent(sequence=event.sequence, type=event.type, body=body))
        return event

    def _redacted(self, payload: JsonObject, body: bytes) -> JsonObject:
        """The payload of an event without secrets."""
        return self.redactor.json(payload) if self.redactor.may_hold_secret(body) else payload

    def _stored(self, event: RunEvent, body: bytes) -> tuple[RunEvent, bytes]:
        """The event as it is folded, and its bytes as they are stored."""
        return event, body


class Burst(Appender):
    """Events that one step of one run appends together, and the state that they lead to."""

    # A batch is worked out once more for each event that is larger.
    offloaded_bytes = LARGE_BYTES

    def __init__(
        self,
        state: RunState,
        *,
        vault: Vault,
        redactor: Redactor,
        guard: Guard,
        now: int,
        new_id: Callable[[], str],
        code_version: str = "",
        limits: DataLimits,
        log_bytes: int,
        spilled: Spilled,
        refusal: QuotaExceeded | None = None,
    ) -> None:
        super().__init__(redactor=redactor, guard=guard, new_id=new_id, limits=limits)
        # Bytes of the run's data, those of this batch included.
        self.size = log_bytes
        # Values of the run that are artifacts; copied before this batch adds one.
        self.spilled = spilled
        self._is_spilled_own = False
        self._inline_bytes = limits.inline_bytes or sys.maxsize
        self.state = state
        self.first = state.next_sequence
        self.now = now
        # Why nodes write no more: their tenant is far beyond a quota of bytes.
        self.refusal = refusal
        self.artifacts: list[Artifact] = []
        self.wishes: list[Wish] = []
        self.children: list[Batch] = []
        self.audits: list[AuditDraft] = []
        # Whether the inbox changes with these events.
        self.moves_waits = False
        # Whether somebody waits for what follows.
        self.is_urgent = False
        # Whether they hold a check of the run as a whole.
        self.has_audits = False
        # Whether they hold a person's answer.
        self.is_intervention = False
        # The agents that act in them.
        self.agents: set[str] = set()
        self.vault = vault
        self._code_version = code_version
        self.iso = to_iso(now)

    def add(
        self,
        event_type: str,
        payload: JsonObject,
        *,
        node_id: str = "",
        causation_id: str = "",
        event_id: str = "",
    ) -> str:
        """Append an event of the host's own and return its id."""
        state = self.state
        payload = self.vault.conceal(state, event_type, node_id, payload, self.now)
        event = RunEvent(
            event_id=event_id or self.new_id(),
            run_id=state.identity.run_id,
            type=event_type,
            payload=payload,
            timestamp=self.iso,
            sequence=state.next_sequence,
            node_id=node_id or UNSET,
            causation_id=causation_id or state.last_event_id or UNSET,
            code_version=self._code_version or UNSET if event_type in _EXECUTIONS else UNSET,
        )
        self._append(self.write(event))
        return event.event_id

    @property
    def is_full(self) -> bool:
        """Whether further events belong into the next batch.

        A value that is stored as an artifact counts whole: to encode it takes as long as ever.
        """
        return len(self.events) >= LARGEST_BURST or self.encoded_bytes > LARGEST_BURST_BYTES

    def check_room(self) -> None:
        """Fail the node that would write although its tenant is far beyond a quota of bytes."""
        if self.refusal is not None:
            raise NodeFailure(
                self.refusal.message,
                code=self.refusal.code,
                retryable=False,
                details=dict(self.refusal.details),
            )

    def check_outcome(self, outcome: Outcome) -> None:
        """Fail the node that would ask, or end with more than small outputs, in the same case."""
        if self.refusal is None:
            return
        is_large = (
            isinstance(outcome, Completed)
            and len(encoded_value(outcome.outputs)) > SMALL_OUTPUTS_BYTES
        )
        if is_large or isinstance(outcome, Suspended):
            self.check_room()

    def copy(self, source: RunEvent, ids: dict[str, str]) -> None:
        """Take over an event of another run: everything stays but whose it is.

        `ids` maps the source's event ids to those given here, so that causes stay causes.
        """
        cause = source.causation_id
        event = replace(
            source,
            event_id=self.new_id(),
            run_id=self.state.identity.run_id,
            sequence=self.state.next_sequence,
            causation_id=cause if isinstance(cause, Unset) else ids.get(cause, cause),
        )
        ids[source.event_id] = event.event_id
        # What one log has, another may have: the limits of its time were others.
        limits, self.limits = self.limits, None
        self._append(self.write(event))
        self.limits = limits

    def redacted(self, value: Json) -> Json:
        """A value that is stored beside the events, without secrets."""
        return self._redacted({"value": value}, encode(value))["value"]

    def _redacted(self, payload: JsonObject, body: bytes) -> JsonObject:
        """The payload without secrets. Its large parts are examined by a thread.

        Ids that are new with each attempt at a batch are in the small rest, so an attempt finds
        the results of the one before.
        """
        if len(body) <= self.offloaded_bytes:
            return super()._redacted(payload, body)
        parts: list[Json] = []
        rest = _without_large(payload, parts)
        try:
            found: list[Json] = offload_to_thread(
                partial(_redacted_parts, self.redactor, parts), b"redact" + encode(parts)
            )
        except WorkFailed as failed:
            raise Unavailable(f"an event is too large to be redacted now: {failed}") from failed
        clean = self.redactor.json(rest)
        if clean is rest and not any(found):
            return payload
        pairs = zip(found, parts, strict=True)
        whole = [part if new is None else new[0] for new, part in pairs]
        return cast("JsonObject", _with_large(clean, whole))

    def _stored(self, event: RunEvent, body: bytes) -> tuple[RunEvent, bytes]:
        """Move large values into artifacts, and escape user data that looks like a reference."""
        if len(body) <= self._inline_bytes and MARK not in body:
            return event, body
        if not self._is_spilled_own:
            self.spilled, self._is_spilled_own = self.spilled.copy(), True
        payload, stored, made = self.spilled.spill(event.type, event.payload, self._inline_bytes)
        if not made and not self.spilled.references and MARK not in body:
            return event, body
        self.spilled.has_marks = self.spilled.has_marks or MARK in body
        for reference, content in made:
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

    def _append(self, event: RunEvent) -> None:
        self.state = fold(self.state, event)
        if agent := agent_of_payload(event.payload):
            self.agents.add(agent)
        self.moves_waits = self.moves_waits or event.type in _WAITS
        self.has_audits = self.has_audits or event.type in _AUDITS

    def add_from_node(
        self,
        event_type: str,
        payload: JsonObject,
        *,
        node_id: str,
        causation_id: str = "",
        event_id: str = "",
    ) -> str:
        """Append an event that a node emits, if it may."""
        self.guard.check(self.state.graph.nodes[node_id].type_id, event_type, payload)
        return self.add(
            event_type, payload, node_id=node_id, causation_id=causation_id, event_id=event_id
        )


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
    """Tell whether a member is examined at once. One that its name makes secret is not examined."""
    if isinstance(member, str):
        return len(member) <= PART_BYTES or names_secret(name, member)
    return len(encode(member)) <= PART_BYTES


def _with_large(value: Json, parts: Sequence[Json]) -> Json:
    """Put the parts in their places again."""
    if isinstance(value, _Part):
        return parts[value.number]
    if isinstance(value, dict):
        members = cast("JsonObject", value)
        return {name: _with_large(member, parts) for name, member in members.items()}
    return value


def _redacted_parts(redactor: Redactor, parts: Sequence[Json]) -> list[Json]:
    """For each part a list with the part without secrets, or None where it holds none."""
    found: list[Json] = []
    for part in parts:
        clean = redactor.json(part) if redactor.may_hold_secret(encode(part)) else part
        found.append(None if clean is part else [clean])
    return found


def as_json(value: Json, limits: DataLimits | None = None) -> Json:
    """What the value looks like after a round trip through the log.

    State folded now and state folded from the disk tomorrow must be the same. Raises `NodeFailure`
    when the value is not JSON, or larger than the limits say.
    """
    return msgspec.json.decode(encoded_value(value, limits))


def encoded_value(value: Json, limits: DataLimits | None = None) -> bytes:
    """A value of a node as JSON, checked like `as_json`."""
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise NodeFailure(f"a value is not JSON: {fault}", retryable=False) from fault
    if limits is not None:
        limits.check_value(len(body))
    return body
