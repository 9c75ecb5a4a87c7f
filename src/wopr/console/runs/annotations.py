"""Annotations of a run, grouped by their target: the run, an event or a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wopr.protocol.documents import Unset, to_millis
from wopr.protocol.resources.annotations import Annotation
from wopr.store.port.feedback import AnnotationRow, Annotations, FeedbackCount

MAX_NOTES: Final = 500
_ANNOTATION: Final = msgspec.json.Decoder(Annotation)


@dataclass(frozen=True, slots=True)
class AnnotationLine:
    """One annotation as a line."""

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
class RunAnnotations:
    """All annotations of a run, by target."""

    run: list[AnnotationLine] = field(default_factory=list[AnnotationLine])
    by_event: dict[str, list[AnnotationLine]] = field(
        default_factory=dict[str, list[AnnotationLine]]
    )
    by_node: dict[str, list[AnnotationLine]] = field(
        default_factory=dict[str, list[AnnotationLine]]
    )
    count: int = 0

    def add(self, note: AnnotationLine) -> None:
        """Add an annotation to its target."""
        self.count += 1
        if note.event_id:
            self.by_event.setdefault(note.event_id, []).append(note)
        elif note.node_id:
            self.by_node.setdefault(note.node_id, []).append(note)
        else:
            self.run.append(note)

    @property
    def all(self) -> list[AnnotationLine]:
        """All annotations, oldest first."""
        groups = (self.run, *self.by_event.values(), *self.by_node.values())
        return sorted((note for group in groups for note in group), key=lambda note: note.at)


async def annotations_of(store: Annotations, tenant: str, run_id: str) -> RunAnnotations:
    """Return the annotations of a run. The caller has checked that the run is the tenant's."""
    found = RunAnnotations()
    for row in await store.annotations(tenant, run_id, None, MAX_NOTES):
        found.add(annotation_line(row))
    return found


def annotation_line(row: AnnotationRow) -> AnnotationLine:
    """Return a stored annotation as a line."""
    annotation = _ANNOTATION.decode(row.body)
    signal, target = annotation.signal, annotation.target
    texts = (signal.label, signal.correction)
    return AnnotationLine(
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


def feedback_count(rows: Sequence[AnnotationRow]) -> FeedbackCount | None:
    """Count annotations of one run as the store does; None if there are none."""
    counted = [row.numbers for row in rows if row.source != "audit"]
    if not counted:
        return None
    ratings, rating_sum, corrections, labels, flags = map(sum, zip(*counted, strict=True))
    return FeedbackCount(
        ratings=ratings, rating_sum=rating_sum, corrections=corrections, labels=labels, flags=flags
    )


def feedback_text(count: FeedbackCount | None) -> str:
    """Return the feedback on a run as text: mean rating, flag and number of annotations."""
    if count is None:
        return ""
    mean = "" if count.mean is None else f"★ {count.mean:.1f} "
    return f"{mean}{'⚑ ' if count.flags else ''}{count.size}"
