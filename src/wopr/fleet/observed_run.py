"""A pushed KAHN run on its way into the store: lines in, the batch of its observed run out (14.7).

What it knows of a run it gets from the run's own log, so nothing is kept beside the log; who
holds on to it between two batches only saves reading the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wopr.fleet.drafts import AnnotationDraft, Draft
from wopr.fleet.lines import split_lines
from wopr.fleet.observe import OBSERVED_WORKFLOW, Observer, line_of
from wopr.fleet.observed_ids import observed_run_id
from wopr.fleet.observed_view import WORKFLOW_VERSION, View
from wopr.fleet.reading import decode_line
from wopr.protocol.annotations import Actor, Annotation, Signal, Target
from wopr.protocol.documents import UNSET, encode
from wopr.protocol.events import RUN_TERMINAL_TYPES, RunEvent
from wopr.protocol.times import to_millis
from wopr.store.port import Batch, RunRow, StoredEvent
from wopr.store.port.feedback import AnnotationRow


class ObservedRun:
    """Follows one KAHN run of a tenant.

    `advertises` says which standard events the host may emit.
    """

    def __init__(self, tenant: str, run_id: str, advertises: Callable[[str], bool]) -> None:
        self.run_id = observed_run_id(tenant, run_id)
        # How many lines its log holds.
        self.lines = 0
        # Tells its log from another one that has the same name since.
        self.last_event_id = ""
        self._observer = Observer(advertises)
        self._view = View(tenant, self.run_id)

    @property
    def next_sequence(self) -> int:
        """How many events its log holds."""
        return self._view.last_sequence + 1

    def recall(self, events: Iterable[RunEvent]) -> None:
        """Take in what the log holds already."""
        for event in events:
            self._fold(event)
            for raw in line_of(event):
                self._observer.feed(decode_line(raw))
                self.lines += 1
            if event.type in RUN_TERMINAL_TYPES:
                self._observer.close()

    def take(self, pushes: Iterable[bytes], *, now: int, new_id: Callable[[], str]) -> Batch:
        """Take what was pushed since, at least one line, and write what the store gets.

        The run may be over with each push, however many are taken at once: the log must not
        depend on that. A check of the run as a whole becomes an annotation.
        """
        first = self.next_sequence
        events: list[StoredEvent] = []
        notes: list[AnnotationRow] = []
        for body in pushes:
            for _, line in split_lines(body):
                self._write(self._observer.feed(decode_line(line)), events, notes, new_id)
                self.lines += 1
            self._write(self._observer.close(), events, notes, new_id)
        return Batch(
            run=self._row(now), first=first, events=tuple(events), annotations=tuple(notes)
        )

    def _write(
        self,
        drafts: Sequence[Draft],
        events: list[StoredEvent],
        notes: list[AnnotationRow],
        new_id: Callable[[], str],
    ) -> None:
        ids: dict[int, str] = {}
        for place, draft in enumerate(drafts):
            if isinstance(draft, AnnotationDraft):
                notes.append(_annotation(draft, self.run_id, new_id()))
                continue
            ids[place] = new_id()
            event = RunEvent(
                event_id=ids[place],
                run_id=self.run_id,
                type=draft.type,
                payload=draft.payload,
                timestamp=draft.timestamp,
                sequence=self.next_sequence,
                node_id=draft.node_id or UNSET,
                causation_id=UNSET if draft.cause is None else ids[draft.cause],
            )
            self._fold(event)
            events.append(StoredEvent(sequence=event.sequence, type=event.type, body=encode(event)))

    def _fold(self, event: RunEvent) -> None:
        self._view.fold(event)
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


def _here(at: int, now: int) -> int:
    """A producer's time as the host's lists have it: not ahead of its clock, nor before all time."""
    return max(0, min(at, now))


def _annotation(draft: AnnotationDraft, run_id: str, annotation_id: str) -> AnnotationRow:
    annotation = Annotation(
        annotation_id=annotation_id,
        target=Target(run_id=run_id),
        signal=Signal(kind=draft.signal["kind"], label=draft.signal.get("label", UNSET)),
        actor=Actor(principal_ref=draft.actor),
        created_at=draft.timestamp,
        note=draft.note,
    )
    return AnnotationRow(
        annotation_id=annotation_id,
        run_id=run_id,
        workflow_id=OBSERVED_WORKFLOW,
        kind=annotation.signal.kind,
        created_at=max(0, to_millis(draft.timestamp)),
        body=encode(annotation),
    )
