"""Builders of annotations, queues and judges."""

from __future__ import annotations

from tests.support.rows import T0
from wopr.store.port.feedback import (
    AnnotationRow,
    FeedbackCount,
    FeedbackFilter,
    JudgedRow,
    JudgeRow,
    QueueRow,
    Review,
)

HOUR = 3_600_000
DAY = 24 * HOUR
# Midnight of the day of `T0`.
MIDNIGHT = T0 - T0 % DAY


def annotation(
    annotation_id: str = "ann-1", run_id: str = "run-1", at: int = T0, **changes: object
) -> AnnotationRow:
    fields: dict[str, object] = {"workflow_id": "greet", "kind": "flag", **changes}
    return AnnotationRow(
        annotation_id=annotation_id,
        run_id=run_id,
        created_at=at,
        body=f'{{"id":"{annotation_id}"}}'.encode(),
        **fields,  # type: ignore[arg-type]  # tests name the fields they change
    )


def rated(annotation_id: str, rating: int, at: int = T0, **changes: object) -> AnnotationRow:
    return annotation(annotation_id, at=at, kind="rating", rating=rating, **changes)  # type: ignore[arg-type]  # see annotation()


def window(since: int = MIDNIGHT, until: int = MIDNIGHT + DAY, **changes: str) -> FeedbackFilter:
    return FeedbackFilter(since=since, until=until, **changes)


def totals(counts: list[FeedbackCount]) -> tuple[int, ...]:
    """Return ratings, their sum, corrections, labels and flags over all groups."""
    return tuple(
        sum(getattr(count, name) for count in counts)
        for name in ("ratings", "rating_sum", "corrections", "labels", "flags")
    )


def queue(queue_id: str = "q-1", at: int = T0, overlap: int = 1) -> QueueRow:
    return QueueRow(queue_id=queue_id, created_at=at, overlap=overlap, body=b"{}")


def review(
    reviewer: str,
    run_id: str = "run-1",
    verdict: bytes = b"good",
    at: int = T0,
    queue_id: str = "q-1",
) -> Review:
    return Review(
        queue_id=queue_id,
        run_id=run_id,
        reviewer=reviewer,
        at=at,
        verdict=verdict,
        annotations=(annotation(f"ann-{reviewer}-{run_id}", run_id, at),),
    )


def judge(judge_id: str = "j-1", at: int = T0) -> JudgeRow:
    return JudgeRow(judge_id=judge_id, created_at=at, body=b"{}")


def pending(*run_ids: str) -> list[JudgedRow]:
    return [JudgedRow(run_id=run_id, state="pending") for run_id in run_ids]
