"""The part of the store's port about judgments: annotations, review queues and judges.

The rules of `wopr.store.port` hold here too: every call names its tenant, and no call crosses
one but `open_judges`, which answers with owners and ids only.

A run has signals: whether it was flagged, rated, corrected, and whether a person intervened. They
are bits of one number, kept with the run and with each of its agents, so that runs can be listed
and counted by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.answers import RememberedAnswer
from wopr.store.port.audit import AuditDraft

GroupBy: TypeAlias = Literal["workflow", "agent", "node", "time", "nothing"]
# Where an annotation comes from: a caller's own judgment, an agent's, or a check that a KAHN
# producer reported. Checks are listed with a run's annotations and are not counted.
AnnotationSource: TypeAlias = Literal["person", "agent", "audit"]
FLAGGED = 1
RATED = 2
CORRECTED = 4
INTERVENED = 8
ALL_SIGNALS = FLAGGED | RATED | CORRECTED | INTERVENED
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Up to so long a window is told hour by hour when it is told by time, a longer one day by day.
LONGEST_BY_HOUR_MS = 3 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRow:
    """An annotation: `body` is the document, the rest is what it is counted by.

    `agent_id` and `node_id` are empty where the target has none. `audit` is the entry that is
    written with it and `label` the text of a label; both are absent from rows that were read.
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
    def signals(self) -> int:
        """The signals that the annotation gives its run."""
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
    """Which counts: from `since` to before `until`, both whole hours."""

    since: int
    until: int
    workflow_id: str | None = None
    agent_id: str | None = None

    @property
    def bucket_ms(self) -> int:
        """How long a group is when the window is told by time."""
        return HOUR_MS if self.until - self.since <= LONGEST_BY_HOUR_MS else DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackCount:
    """Annotations of one group, counted; the fields that it is not grouped by are empty."""

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
        """The number of annotations."""
        return self.ratings + self.corrections + self.labels + self.flags

    @property
    def mean(self) -> float | None:
        """The mean rating, or None without a rating."""
        return round(self.rating_sum / self.ratings, 4) if self.ratings else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCount:
    """Runs of one group, counted by their signals; fields that it is not grouped by are empty."""

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
    """A reviewer's word on one run of a queue.

    `verdict` is what is compared between reviewers: the same bytes mean that they agree.
    """

    queue_id: str
    run_id: str
    reviewer: str
    at: int
    verdict: bytes
    annotations: tuple[AnnotationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewCounts:
    """How far a queue is: runs, and those with all their reviews, held, compared and agreed on."""

    items: int
    finished: int
    locked: int
    reviews: int
    compared: int
    agreed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRow:
    """A judge; `body` is its document without what it has done."""

    judge_id: str
    created_at: int
    body: bytes
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """One run that a judge looks at. `place` is its position, given by the store."""

    run_id: str
    state: str
    place: int = 0
    judge_run_id: str | None = None
    annotation_id: str | None = None
    reason: str | None = None


class Annotations(Protocol):
    """Annotations of runs, and their counts, which are kept with them."""

    async def put_annotation(
        self, tenant: str, row: AnnotationRow, remember: RememberedAnswer | None = None
    ) -> None:
        """Keep an annotation, count it, audit it and remember the answer, all or nothing.

        Raises `NotFound` when the tenant has no such run, and `Conflict` with code
        `idempotency_in_flight` when an answer is already remembered under the same key.
        """
        ...

    async def annotations(
        self, tenant: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[AnnotationRow]:
        """Annotations of a run after that `(created_at, annotation_id)`, in this order."""
        ...

    async def feedback(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[FeedbackCount]:
        """Counts of a window. Costs the hours and days of the window, not the annotations.

        What retention deletes is counted no longer.
        """
        ...

    async def signal_counts(
        self, tenant: str, where: FeedbackFilter, by: GroupBy
    ) -> list[SignalCount]:
        """Runs created in a window, by their signals. Costs the hours and days of the window.

        With an agent, or grouped by agent, a run counts for each agent that took part in it. Runs
        are not counted by node.
        """
        ...

    async def run_feedback(self, tenant: str, run_ids: Sequence[str]) -> dict[str, FeedbackCount]:
        """What was said of each of these runs; a run without annotations is absent."""
        ...


class ReviewQueues(Protocol):
    """Queues of runs to review, and who holds which run until when."""

    async def put_queue(self, tenant: str, row: QueueRow, run_ids: Sequence[str]) -> None:
        """Keep a queue with its first runs, in order; runs that the tenant has not are left out."""
        ...

    async def queue(self, tenant: str, queue_id: str) -> QueueRow | None:
        """The queue, or None."""
        ...

    async def queues(
        self, tenant: str, after: tuple[int, str] | None, limit: int
    ) -> list[QueueRow]:
        """Queues before that `(created_at, queue_id)`, newest first."""
        ...

    async def add_queue_items(
        self, tenant: str, queue_id: str, run_ids: Sequence[str], *, most: int
    ) -> int:
        """Put up to `most` runs that are new to a queue at its end; answers how many."""
        ...

    async def take_queue_item(
        self, tenant: str, queue_id: str, reviewer: str, *, now: int, until: int
    ) -> str | None:
        """Hold the next run for a reviewer, or the one that they hold already; None at the end.

        A run is given to no more reviewers than the queue's overlap, those who are done with it
        and those whose hold has not run out taken together.
        """
        ...

    async def finish_review(self, tenant: str, review: Review) -> tuple[int, bool]:
        """Keep a review with its annotations; answers its run's reviews and whether that is all.

        Raises `NotFound` for an unknown queue or run, and `Conflict` when the reviewer does not
        hold the run or others have taken the place of a hold that ran out.
        """
        ...

    async def review_counts(self, tenant: str, queue_id: str, now: int) -> ReviewCounts:
        """How far the queue is."""
        ...


class Judges(Protocol):
    """Judges at work, and what came of each run."""

    async def put_judge(self, tenant: str, row: JudgeRow, items: Sequence[JudgedRow]) -> None:
        """Keep a judge with the runs that it looks at, in order."""
        ...

    async def judge(self, tenant: str, judge_id: str) -> JudgeRow | None:
        """The judge, or None."""
        ...

    async def judged(
        self, tenant: str, judge_id: str, after: int, limit: int, state: str | None = None
    ) -> list[JudgedRow]:
        """Runs after that place, in order: all of them, or those in one state."""
        ...

    async def judged_counts(self, tenant: str, judge_id: str) -> dict[str, int]:
        """How many runs there are in each state."""
        ...

    async def open_judges(self, limit: int) -> list[tuple[str, str]]:
        """`(tenant, judge_id)` of judges that are not done, oldest first."""
        ...

    async def move_judged(
        self, tenant: str, judge_id: str, item: JudgedRow, annotation: AnnotationRow | None = None
    ) -> bool:
        """Set what came of a run, with its annotation; False when it was settled already."""
        ...

    async def close_judge(self, tenant: str, judge_id: str) -> None:
        """Note that a judge is done."""
        ...
