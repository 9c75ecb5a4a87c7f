"""An observed run on its way into the store: pushed KAHN lines in, the batch of its log out (14.7).

Its events pass the one appender like those of any run, so a secret in a pushed line is redacted on
the log. The producer's bytes stay in the KAHN archive. A run that is read again after a restart is
therefore rebuilt from both: its log says how far it goes, and the archive has the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from wopr.engine.outcome import NodeFailure
from wopr.fleet.drafts import AnnotationDraft, Draft, EventDraft
from wopr.fleet.lines import split_lines
from wopr.fleet.observe import OBSERVED_WORKFLOW, Observer, holds_line
from wopr.fleet.observed_agent import TYPE_ID
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.observed_view import WORKFLOW_VERSION, View
from wopr.fleet.reading import decode_line
from wopr.protocol.agents import agent_of_payload
from wopr.protocol.annotations import Actor, Annotation, Signal, Target
from wopr.protocol.documents import UNSET, encode
from wopr.protocol.events import RUN_TERMINAL_TYPES, RunEvent
from wopr.protocol.times import to_millis
from wopr.runtime.appender import Appender, Guard
from wopr.security.redact import Redactors
from wopr.store.port import Batch, RunRow
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow

# Events of a run's own life: the host appends them, no node emits them.
_HOST_OWN: Final = ("run.", "node.")

log = structlog.get_logger("wopr.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """What the host applies to every event and every annotation of an observed run."""

    guard: Guard
    redactors: Redactors
    # The audit entry of an annotation of that tenant.
    audit: Callable[[str, Annotation], AuditDraft]


class ObservedRun:
    """Follows one KAHN run of a tenant."""

    def __init__(self, tenant: str, run_id: str, rules: LogRules) -> None:
        self.run_id = observed_run_id(tenant, run_id)
        # Number of lines that its log holds, and of those that were taken into account here.
        self.lines = 0
        self.known_lines = 0
        # Tells its log from a later one of the same name.
        self.last_event_id = ""
        self._tenant = tenant
        self._rules = rules
        self.redactor = rules.redactors.of(tenant)
        self._observer = Observer(rules.guard.advertises, self.redactor.json)
        self._view = View(tenant, self.run_id)
        self._agents: set[str] = set()
        # Number of lines before the run's end, once it has ended.
        self._ended_after: int | None = None

    @property
    def next_sequence(self) -> int:
        """How many events its log holds."""
        return self._view.last_sequence + 1

    def recall(self, events: Iterable[RunEvent]) -> None:
        """Take in further events that the log holds already."""
        for event in events:
            self._fold(event)
            self.lines += holds_line(event)
            if event.type in RUN_TERMINAL_TYPES:
                self._ended_after = self.lines

    def recall_lines(self, body: bytes) -> None:
        """Take in lines of the archive that the log holds already, as many as it holds."""
        for _, line in split_lines(body):
            if self.known_lines == self.lines:
                return
            self._observer.feed(decode_line(line))
            self.known_lines += 1
            if self.known_lines == self._ended_after:
                self._observer.close()

    def take(self, pushes: Iterable[bytes], *, now: int, new_id: Callable[[], str]) -> Batch:
        """Take what was pushed since, at least one line, and write what the store gets.

        The run may be over with each push, however many are taken at once: the log must not
        depend on that. A check of the run as a whole becomes an annotation.
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

    def append(self, appender: Appender, draft: EventDraft, event_id: str, cause: str) -> None:
        """Write a draft at the end of the log."""
        self._fold(
            appender.write(
                RunEvent(
                    event_id=event_id,
                    run_id=self.run_id,
                    type=draft.type,
                    payload=draft.payload,
                    timestamp=draft.timestamp,
                    sequence=self.next_sequence,
                    node_id=draft.node_id or UNSET,
                    causation_id=cause or UNSET,
                )
            )
        )

    def _fold(self, event: RunEvent) -> None:
        self._view.fold(event)
        if agent := agent_of_payload(event.payload):
            self._agents.add(agent)
        self.last_event_id = event.event_id

    def _row(self, now: int) -> RunRow:
        view = self._view
        return RunRow(
            run_id=self.run_id,
            workflow_id=OBSERVED_WORKFLOW,
            workflow_version=WORKFLOW_VERSION,
            status=view.status,
            created_at=_here(view.started_at, now),
            updated_at=now,
            last_sequence=view.last_sequence,
            ended_at=None if view.ended_at is None else _here(view.ended_at, now),
            # Always there, since nothing else knows how to fold a log without a workflow.
            snapshot=encode(view.snapshot()),
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
        super().__init__(redactor=run.redactor, guard=rules.guard, new_id=new_id)
        self.annotations: list[AnnotationDraft] = []
        self._run = run

    def add(self, drafts: Sequence[Draft]) -> None:
        """Add the drafts of one line; a derived event that the guard refuses is left out."""
        ids: dict[int, str] = {}
        for place, draft in enumerate(drafts):
            if isinstance(draft, AnnotationDraft):
                self.annotations.append(draft)
            elif self._is_allowed(draft):
                cause = "" if draft.cause is None else ids.get(draft.cause, "")
                ids[place] = self.new_id()
                self._run.append(self, draft, ids[place], cause)

    def _is_allowed(self, draft: EventDraft) -> bool:
        if draft.type.startswith(_HOST_OWN):
            return True
        try:
            self.guard.check(TYPE_ID, draft.type, draft.payload)
        except NodeFailure as refusal:
            run_id, message = self._run.run_id, str(refusal)
            log.warning("derived event left out", run_id=run_id, type=draft.type, message=message)
            return False
        return True


def _here(at: int, now: int) -> int:
    """A producer's time as the host's lists have it: not ahead of its clock, nor before all time."""
    return max(0, min(at, now))
