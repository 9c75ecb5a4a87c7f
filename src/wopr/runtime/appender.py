"""The one appender: every event of every run passes `Appender.write`, observed runs included.

An event is checked (its emitter and its capability), masked where it is marked sensitive, redacted
where it looks like a secret, stamped (id, sequence, time, cause) and encoded once: these bytes are
what is stored and what every reader gets.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from wopr.engine.fold import fold
from wopr.engine.outcome import NodeFailure
from wopr.engine.state import RunState
from wopr.protocol.agents import agent_of_payload
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode
from wopr.protocol.emitters import is_advertised, may_emit
from wopr.protocol.events import EVENT_TYPES, RunEvent, is_known_type
from wopr.protocol.payloads.check import faults
from wopr.protocol.times import to_iso
from wopr.runtime.vault import Vault
from wopr.security.redact import Redactor
from wopr.store.port import Artifact, Batch, StoredEvent, Wish
from wopr.store.port.audit import AuditDraft

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

    def __init__(self, *, redactor: Redactor, guard: Guard, new_id: Callable[[], str]) -> None:
        self.events: list[StoredEvent] = []
        self.guard = guard
        self.redactor = redactor
        self.new_id = new_id

    def write(self, event: RunEvent) -> RunEvent:
        """Put an event at the end of the batch and return it as it is stored."""
        body = encode(event)
        if self.redactor.may_hold_secret(body):
            event = replace(event, payload=self.redactor.json(event.payload))
            body = encode(event)
        self.events.append(StoredEvent(sequence=event.sequence, type=event.type, body=body))
        return event


class Burst(Appender):
    """Events that one step of one run appends together, and the state that they lead to."""

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
    ) -> None:
        super().__init__(redactor=redactor, guard=guard, new_id=new_id)
        self.state = state
        self.first = state.next_sequence
        self.now = now
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
        self._append(self.write(event))

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


def as_json(value: Json) -> Json:
    """What the value looks like after a round trip through the log.

    State folded now and state folded from the disk tomorrow must be the same.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise NodeFailure(f"a value is not JSON: {fault}", retryable=False) from fault
