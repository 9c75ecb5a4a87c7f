"""Annotations as they stand beside what they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wopr.protocol.annotations import Annotation
from wopr.protocol.documents import Unset
from wopr.protocol.times import to_millis
from wopr.store.port.feedback import AnnotationRow, Annotations, FeedbackCount
from wopr.store.sql.side_rows import counted_numbers

MOST_NOTES: Final = 500
_ANNOTATION: Final = msgspec.json.Decoder(Annotation)


@dataclass(frozen=True, slots=True)
class Note:
    """One judgment as a line."""

    annotation_id: str
    kind: str
    text: str
    rating: int
    note: str
    by: str
    at: int
    event_id: str
    node_id: str


@dataclass(slots=True)
class Notes:
    """All judgments of a run, by what they are about."""

    run: list[Note] = field(default_factory=list[Note])
    by_event: dict[str, list[Note]] = field(default_factory=dict[str, list[Note]])
    by_node: dict[str, list[Note]] = field(default_factory=dict[str, list[Note]])
    count: int = 0

    def add(self, note: Note) -> None:
        """Put one beside what it is about."""
        self.count += 1
        if note.event_id:
            self.by_event.setdefault(note.event_id, []).append(note)
        elif note.node_id:
            self.by_node.setdefault(note.node_id, []).append(note)
        else:
            self.run.append(note)

    @property
    def all(self) -> list[Note]:
        """Every one, oldest first."""
        groups = (self.run, *self.by_event.values(), *self.by_node.values())
        return sorted((note for group in groups for note in group), key=lambda note: note.at)


async def notes_of(store: Annotations, tenant: str, run_id: str) -> Notes:
    """The judgments of a run that the caller has found to be the tenant's."""
    found = Notes()
    for row in await store.annotations(tenant, run_id, None, MOST_NOTES):
        found.add(note_of(row))
    return found


def note_of(row: AnnotationRow) -> Note:
    """A stored annotation as a line."""
    annotation = _ANNOTATION.decode(row.body)
    signal, target = annotation.signal, annotation.target
    texts = (signal.label, signal.correction)
    return Note(
        annotation_id=annotation.annotation_id,
        kind=signal.kind,
        text=next((text for text in texts if not isinstance(text, Unset)), ""),
        rating=signal.stars or 0,
        note="" if isinstance(annotation.note, Unset) else annotation.note,
        by=annotation.actor.principal_ref,
        at=to_millis(annotation.created_at),
        event_id="" if isinstance(target.event_id, Unset) else target.event_id,
        node_id="" if isinstance(target.node_id, Unset) else target.node_id,
    )


def count_of(rows: Sequence[AnnotationRow]) -> FeedbackCount | None:
    """Count annotations of one run as the store does; None when there is nothing to count."""
    counted = [counted_numbers(row, 1) for row in rows if row.source != "audit"]
    if not counted:
        return None
    ratings, rating_sum, corrections, labels, flags = map(sum, zip(*counted, strict=True))
    return FeedbackCount(
        ratings=ratings, rating_sum=rating_sum, corrections=corrections, labels=labels, flags=flags
    )


def marks(said: FeedbackCount | None) -> str:
    """What was said of a run: its mean rating, whether it was flagged, and the number of notes."""
    if said is None:
        return ""
    mean = "" if said.mean is None else f"★ {said.mean:.1f} "
    return f"{mean}{'⚑ ' if said.flags else ''}{said.size}"
