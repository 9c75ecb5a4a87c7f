"""Port of feedback: annotations, review queues and judges.

The rules of `wopr.store.port` apply. Only `open_judges` crosses tenants; it returns tenants and ids
only.

A run has signals: flagged, rated, corrected, and whether a person intervened. They are bits of one
number, stored with the run and with each of its agents, so that runs can be listed and counted by
signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.audit import AuditDraft
from wopr.store.port.idempotency import IdempotencyRecord

GroupBy: TypeAlias = Literal["workflow", "agent", "node", "time", "nothing"]
# The source of an annotation: a person, an agent, or an audit checkpoint of a KAHN producer. Audit
# checkpoints are listed with the annotations of a run and are not counted.
AnnotationSource: TypeAlias = Literal["person", "agent", "audit"]
FLAGGED = 1
RATED = 2
CORRECTED = 4
INTERVENED = 8
ALL_SIGNALS = FLAGGED | RATED | CORRECTED | INTERVENED
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# A period up to this length is grouped by hour when it is grouped by time, a longer one by day.
LONGEST_BY_HOUR_MS = 3 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRow:
    """An annotation: `body` is the document, and the other fields are for lists and counts.

    `agent_id` and `node_id` are empty if the target has none. `audit` is the audit entry that is
    written with the annotation, and `label` the text of a label; reads return neither.
    """

    annotation_id: str
    run_id: str
    workflow_id: str
    kind: str
    created_at: int
    body: bytes
    rating: int | None = None
    agent_id: str = ""
    node_id: str = ""
    source: AnnotationSource = "person"
    audit: AuditDraft | None = field(default=None, compare=False)
    label: str | None = field(default=None, compare=False)

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """Return the increments of ratings, their sum, corrections, labels and flags."""
        return (
            int(self.kind == "rating"),
            self.rating or 0,
            int(self.kind == "correction"),
            int(self.kind == "label"),
            int(self.kind == "flag"),
        )

    @property
    def signals(self) -> int:
        """Return the signals that the annotation gives its run."""
        if self.source == "audit":
            return 0
        match self.kind:
            case "flag":
                return FLAGGED
            case "rating":
                return RATED
            case "correction":
                return CORRECTED | (INTERVENED if self.source == "person" else 0)
            case _:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackFilter:
    """The period from `since` to before `until`, both whole hours, and optional conditions."""

    since: int
    until: int
    workflow_id: str | None = None
    agent_id: str | None = None

    @property
    def bucket_ms(self) -> int:
        """Return the length of each group when the period is grouped by time."""
        return HOUR_MS if self.until - self.since <= LONGEST_BY_HOUR_MS else DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackCount:
    """Counts of the annotations of one group; the fields of other groupings are empty."""

    ratings: int
    rating_sum: int
    corrections: int
    labels: int
    flags: int
    workflow_id: str = ""
    agent_id: str = ""
    node_id: str = ""
    bucket: int = 0

    @property
    def size(self) -> int:
        """Return the number of annotations."""
        return self.ratings + self.corrections + self.labels + self.flags

    @property
    def mean(self) -> float | None:
        """Return the mean rating, or None without a rating."""
        return round(self.rating_sum / self.ratings, 4) if self.ratings else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCount:
    """Counts of the runs of one group by signal; the fields of other groupings are empty."""

    runs: int
    flagged: int
    corrected: int
    intervened: int
    workflow_id: str = ""
    agent_id: str = ""
    bucket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A review queue; `body` is its document without the progress."""

    queue_id: str
    created_at: int
    overlap: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The review of one run of a queue by one reviewer.

    Reviewers agree if the bytes of their `verdict` are the same.
    """

    queue_id: str
    run_id: str
    reviewer: str
    at: int
    verdict: bytes
    annotations: tuple[AnnotationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewCounts:
    """The progress of a queue: the numbers of its runs by state, and of its reviews."""

    items: int
    finished: int
    locked: int
    reviews: int
    compared: int
    agreed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRow:
    """A judge; `body` is its document without the progress."""

    judge_id: str
    created_at: int
    body: bytes
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """A run that a judge judges. The store assigns `place`, its position."""

    run_id: str
    state: str
    place: int = 0
    judge_run_id: str | None = None
    annotation_id: str | None = None
    reason: str | None = None


class Annotations(Protocol):
    """Annotations of runs, and their counts."""

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, idempotency: IdempotencyRecord | None = None
    ) -> None:
        """Store an annotation with its counts, audit entry and response, all or nothing.

        Raises `NotFound` when the tenant has no such run, and `Conflict` with code
        `idempotency_in_flight` if a response is already stored under the same key.
        """
        ...

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """List annotations of a run after that `(created_at, annotation_id)`, in this order."""
        ...

    async def feedback_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[FeedbackCount]:
        """Return the counts of a period. The cost depends on its hours and days only.

        Annotations that retention deletes are not counted.
        """
        ...

    async def signal_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[SignalCount]:
        """Count the runs created in a period by signal.

        The cost depends on the hours and days of the period only.

        With an agent, or grouped by agent, a run counts for each agent that took part in it. Runs
        are not counted by node.
        """
        ...

    async def run_feedback(self, tenant: str, run_ids: Sequence[str]) -> dict[str, FeedbackCount]:
        """Return the counts of each of these runs; a run without annotations is absent."""
        ...


class ReviewQueues(Protocol):
    """Queues of runs to review, and the locks of the reviewers."""

    async def put_queue(self, tenant: str, row: QueueRow, run_ids: Sequence[str]) -> None:
        """Store a queue with its first runs, in order; runs of other tenants are left out."""
        ...

    async def queue(self, tenant: str, queue_id: str) -> QueueRow | None:
        """Return the queue, or None if it does not exist."""
        ...

    async def queues(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[QueueRow]:
        """List queues before that `(created_at, queue_id)`, newest first."""
        ...

    async def add_queue_items(
        self, tenant: str, queue_id: str, run_ids: Sequence[str], *, most: int
    ) -> int:
        """Append up to `most` runs that are new to a queue, and return their number."""
        ...

    async def lock_queue_item(
        self, tenant: str, queue_id: str, reviewer: str, *, now: int, until: int
    ) -> str | None:
        """Lock the next run for a reviewer, or renew the reviewer's lock; None at the end.

        The finished reviews and the unexpired locks of a run are together at most the queue's
        overlap.
        """
        ...

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Store a review; return the number of reviews of the run, and whether that is enough.

        Raises `NotFound` for an unknown queue or run, and `Conflict` if the reviewer has no lock,
        or the lock has expired and other reviewers have locked the run.
        """
        ...

    async def review_counts(self, tenant: str, queue_id: str, now: int) -> ReviewCounts:
        """Return the progress of a queue."""
        ...


class Judges(Protocol):
    """Judges, and the state of each run that they judge."""

    async def put_judge(self, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
        """Store a judge with the runs that it judges, in order."""
        ...

    async def judge(self, tenant: str, judge_id: str) -> JudgeRow | None:
        """Return the judge, or None if it does not exist."""
        ...

    async def judged_runs(
        self, tenant: str, judge_id: str, after: int, limit: int, state: str | None = None
    ) -> list[JudgedRow]:
        """List runs after that place, in order: all runs, or the runs in one state."""
        ...

    async def judged_run_counts(self, tenant: str, judge_id: str) -> dict[str, int]:
        """Return the number of runs in each state."""
        ...

    async def open_judges(self, limit: int) -> list[tuple[str, str]]:
        """List `(tenant, judge_id)` of judges that are not done, oldest first."""
        ...

    async def set_judged_state(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set the state of a run, with its annotation; False if its state is already final."""
        ...

    async def close_judge(self, tenant: str, judge_id: str) -> None:
        """Mark a judge as done."""
        ...
