"""One observed run: converts pushed KAHN lines into a batch of its log and its snapshot (14.7).

Its events use the same appender as those of other runs, so secrets are redacted in the log. The
stored lines are the producer's bytes. After a restart the state of the run is restored from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from msgspec.structs import replace

from wopr.engine.outcome import NodeFailure
from wopr.kahn.lines import decode_line, split_lines
from wopr.kahn.observed.events import (
    TYPE_ID,
    AnnotationDraft,
    Draft,
    EventDraft,
    Observer,
    contains_line,
)
from wopr.protocol.agents import AgentRef, agent_of_payload
from wopr.protocol.documents import UNSET, JsonObject, Unset, encode, object_of, to_millis
from wopr.protocol.events import EVENT_LOG_SCHEMA_VERSION, RUN_TERMINAL_TYPES, RunEvent
from wopr.protocol.observed_ids import OBSERVED_WORKFLOW, observed_run_id
from wopr.protocol.payload_members import text_member
from wopr.protocol.resources.annotations import Actor, Annotation, Signal, Target
from wopr.protocol.runs import NodeView, Owner, RunError, RunSnapshot, RunStatus
from wopr.runs.append import Appender, AppendRules, Guard
from wopr.security.redact import Redactors
from wopr.store.port import Batch, RunRow
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow

WORKFLOW_VERSION: Final = "1"
_END_STATUSES: Final[dict[str, RunStatus]] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
}


class ObservedRunState:
    """The state of an observed run, folded from its log. Its agents are shown as nodes."""

    def __init__(self, tenant: str, run_id: str) -> None:
        self.last_sequence = -1
        self.started_at = 0
        self.ended_at: int | None = None
        self._tenant = tenant
        self._run_id = run_id
        self._nodes: dict[str, NodeView] = {}
        self._agent: AgentRef | Unset = UNSET
        self._ended: tuple[RunStatus, str] | None = None
        self._error: RunError | Unset = UNSET
        self._metadata: JsonObject = {}
        self._started_at: str | Unset = UNSET

    @property
    def status(self) -> RunStatus:
        """The status of the run; it waits if one of its agents waits."""
        if self._ended is not None:
            return self._ended[0]
        return "running" if self._waiting_node() is None else "waiting-input"

    def fold(self, event: RunEvent) -> None:
        """Take the next event of the log."""
        self.last_sequence = event.sequence
        if event.type not in _STATE_EVENTS:
            return
        payload = object_of(event.payload)
        if event.type == "run.started":
            self._started_at = event.timestamp
            self.started_at = to_millis(event.timestamp)
            self._metadata = object_of(payload.get("metadata"))
        elif event.type in _END_STATUSES:
            self._ended = _END_STATUSES[event.type], event.timestamp
            self.ended_at = to_millis(event.timestamp)
            self._error = _error(payload) if event.type == "run.failed" else UNSET
        elif event.type in _NODE_CHANGES and isinstance(event.node_id, str):
            before = self._nodes.get(event.node_id, NodeView(status="running", attempts=1))
            self._nodes[event.node_id] = _NODE_CHANGES[event.type](before, event, payload)
            if event.type == "node.started":
                self._agent = AgentRef(agent_id=str(object_of(payload.get("agent"))["agentId"]))

    def snapshot(self) -> RunSnapshot:
        """Return the snapshot of the run."""
        ended = UNSET if self._ended is None else self._ended[1]
        return RunSnapshot(
            run_id=self._run_id,
            workflow_id=OBSERVED_WORKFLOW,
            workflow_version=WORKFLOW_VERSION,
            status=self.status,
            owner=Owner(tenant=self._tenant),
            current_node_id=(None if self._ended else self._waiting_node()) or UNSET,
            started_at=self._started_at,
            completed_at=ended,
            ended_at=ended,
            node_states=dict(self._nodes),
            agent=self._agent,
            error=self._error,
            event_log_schema_version=EVENT_LOG_SCHEMA_VERSION,
            metadata=self._metadata,
            last_sequence=self.last_sequence,
        )

    def _waiting_node(self) -> str | None:
        return next((n for n, node in self._nodes.items() if node.status == "suspended"), None)


def _start_node(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, started_at=event.timestamp)


def _suspend_node(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="suspended")


def _resume_node(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="running")


def _fail_node(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="failed", completed_at=event.timestamp, error=_error(payload))


def _complete_node(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="completed", completed_at=event.timestamp)


_NODE_CHANGES: Final[dict[str, Callable[[NodeView, RunEvent, JsonObject], NodeView]]] = {
    "node.started": _start_node,
    "node.suspended": _suspend_node,
    "node.resumed": _resume_node,
    "node.failed": _fail_node,
    "node.completed": _complete_node,
}
# The events that change the state. Most events only contain a line.
_STATE_EVENTS: Final = frozenset({"run.started", *_END_STATUSES, *_NODE_CHANGES})


def _error(payload: JsonObject) -> RunError:
    error = object_of(payload.get("error"))
    return RunError(
        code=text_member(error, "code") or "unknown",
        message=text_member(error, "message") or "no error message",
    )


# Prefixes of events that the host appends and no node emits.
_HOST_EVENTS: Final = ("run.", "node.")

log = structlog.get_logger("wopr.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """The rules that the host applies to every event and annotation of an observed run."""

    guard: Guard
    redactors: Redactors
    # Returns the audit entry for an annotation of a tenant.
    audit: Callable[[str, Annotation], AuditDraft]


class ObservedRun:
    """One observed run of a tenant, while lines are added to it."""

    def __init__(self, tenant: str, run_id: str, rules: LogRules) -> None:
        self.run_id = observed_run_id(tenant, run_id)
        # Number of lines in its log, and of those that the observer has taken.
        self.lines = 0
        self.known_lines = 0
        # Identifies this log, because the run may have been deleted and created again.
        self.last_event_id = ""
        self._tenant = tenant
        self._rules = rules
        self.redactor = rules.redactors.of_tenant(tenant)
        self._observer = Observer(rules.guard.advertises, self.redactor.json)
        self._state = ObservedRunState(tenant, self.run_id)
        self._agents: set[str] = set()
        # Number of lines before the run's end, once it has ended.
        self._ended_after: int | None = None

    @property
    def next_sequence(self) -> int:
        """The number of events in its log."""
        return self._state.last_sequence + 1

    def restore_events(self, events: Iterable[RunEvent]) -> None:
        """Restore the state from events that are already in the log."""
        for event in events:
            self.fold(event)
            self.lines += contains_line(event)
            if event.type in RUN_TERMINAL_TYPES:
                self._ended_after = self.lines

    def restore_lines(self, body: bytes) -> None:
        """Restore the observer from stored lines, up to the number of lines in the log."""
        for _, line in split_lines(body):
            if self.known_lines == self.lines:
                return
            self._observer.feed(decode_line(line))
            self.known_lines += 1
            if self.known_lines == self._ended_after:
                self._observer.close()

    def take(self, pushes: Iterable[bytes], *, now: int, new_id: Callable[[], str]) -> Batch:
        """Take new pushes with at least one line, and return the batch to append.

        The run may end after each push, so that the log does not depend on how many pushes are
        taken together. A checkpoint of the run becomes an annotation.
        """
        first = self.next_sequence
        known = self._agents.copy()
        batch = _ObservedBatch(self, self._rules, new_id)
        for body in pushes:
            for _, line in split_lines(body):
                batch.add(self._observer.feed(decode_line(line)))
                self.lines += 1
                self.known_lines += 1
            batch.add(self._observer.close())
        return Batch(
            run=self._row(now),
            first=first,
            events=tuple(batch.events),
            annotations=tuple(self._annotation(draft, new_id()) for draft in batch.annotations),
            agents=tuple(sorted(self._agents - known)),
        )

    def event(self, draft: EventDraft, event_id: str, cause: str) -> RunEvent:
        """Create the next event of the log from a draft."""
        return RunEvent(
            event_id=event_id,
            run_id=self.run_id,
            type=draft.type,
            payload=draft.payload,
            timestamp=draft.timestamp,
            sequence=self.next_sequence,
            node_id=draft.node_id or UNSET,
            causation_id=cause or UNSET,
        )

    def fold(self, event: RunEvent) -> None:
        """Fold an event that is at the end of the log."""
        self._state.fold(event)
        if agent := agent_of_payload(event.payload):
            self._agents.add(agent)
        self.last_event_id = event.event_id

    def _row(self, now: int) -> RunRow:
        state = self._state
        return RunRow(
            run_id=self.run_id,
            workflow_id=OBSERVED_WORKFLOW,
            workflow_version=WORKFLOW_VERSION,
            status=state.status,
            created_at=_host_time(state.started_at, now),
            updated_at=now,
            last_sequence=state.last_sequence,
            ended_at=None if state.ended_at is None else _host_time(state.ended_at, now),
            # Always stored, because the log cannot be folded without a workflow.
            snapshot=encode(state.snapshot()),
        )

    def _annotation(self, draft: AnnotationDraft, annotation_id: str) -> AnnotationRow:
        redacted = self.redactor.text
        label = draft.signal.get("label")
        annotation = Annotation(
            annotation_id=annotation_id,
            target=Target(run_id=self.run_id),
            signal=Signal(
                kind=draft.signal["kind"], label=UNSET if label is None else redacted(label)
            ),
            actor=Actor(principal_ref=redacted(draft.actor)),
            created_at=draft.timestamp,
            note=redacted(draft.note),
        )
        return AnnotationRow(
            annotation_id=annotation_id,
            run_id=self.run_id,
            workflow_id=OBSERVED_WORKFLOW,
            kind=annotation.signal.kind,
            created_at=max(0, to_millis(draft.timestamp)),
            body=encode(annotation),
            source="audit",
            audit=self._rules.audit(self._tenant, annotation),
        )


class _ObservedBatch(Appender):
    """Events and annotations that one batch adds to an observed run."""

    def __init__(self, run: ObservedRun, rules: LogRules, new_id: Callable[[], str]) -> None:
        super().__init__(AppendRules(guard=rules.guard, redactor=run.redactor, new_id=new_id))
        self.annotations: list[AnnotationDraft] = []
        self._run = run

    def add(self, drafts: Sequence[Draft]) -> None:
        """Add the drafts of one line; a derived event that the guard refuses is left out."""
        ids: dict[int, str] = {}
        for place, draft in enumerate(drafts):
            if isinstance(draft, AnnotationDraft):
                self.annotations.append(draft)
            else:
                cause = "" if draft.cause is None else ids.get(draft.cause, "")
                event_id = self._append_if_allowed(draft, cause)
                if event_id:
                    ids[place] = event_id

    def _append_if_allowed(self, draft: EventDraft, cause: str) -> str:
        """Append a draft and return the id of its event; empty when the guard refuses it."""
        event = self._run.event(draft, self.rules.new_id(), cause)
        emitter = "" if draft.type.startswith(_HOST_EVENTS) else TYPE_ID
        try:
            return self.append(event, emitter=emitter).event_id
        except NodeFailure as refusal:
            run_id, message = self._run.run_id, str(refusal)
            log.warning("derived event left out", run_id=run_id, type=draft.type, message=message)
            return ""

    def _fold(self, event: RunEvent) -> None:
        self._run.fold(event)


def _host_time(at: int, now: int) -> int:
    """Limit a producer's time to the range from 0 to the host's time."""
    return max(0, min(at, now))
