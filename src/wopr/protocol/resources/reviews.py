"""Documents of feedback: summaries, review queues and judges."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, Document, Id, NonEmpty, Unset
from wopr.protocol.resources.annotations import Annotation, AnnotationCreate, SignalKind
from wopr.protocol.runs import RunStatus

SummaryBy: TypeAlias = Literal["workflow", "agent", "node", "signal", "time"]
SUMMARY_BY: Final[tuple[SummaryBy, ...]] = get_args(SummaryBy)
JudgedState: TypeAlias = Literal["pending", "running", "annotated", "skipped", "failed"]
ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]
# The formats of exported runs, with their media types.
EXPORT_FORMATS: Final[dict[ExportFormat, str]] = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_MAX_ITEMS: Final = 10_000
_MAX_CHOSEN: Final = 1000

_Count = Annotated[int, msgspec.Meta(ge=1, le=_MAX_ITEMS)]
_ChosenRuns = Annotated[list[Id], msgspec.Meta(min_length=1, max_length=_MAX_CHOSEN)]


class FeedbackGroup(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Counts of annotations and runs of one workflow, agent, node, kind or period.

    Annotations count when they were stored, runs when they were created. A rate is the share of
    `runs` with at least one correction, flag, or intervention (a person's answer or correction).
    Runs and rates are absent by node, by kind, and for annotations without an agent.
    """

    annotations: int
    ratings: int
    corrections: int
    labels: int
    flags: int
    runs: int | Unset = UNSET
    corrected_runs: int | Unset = UNSET
    flagged_runs: int | Unset = UNSET
    intervened_runs: int | Unset = UNSET
    correction_rate: float | Unset = UNSET
    flag_rate: float | Unset = UNSET
    intervention_rate: float | Unset = UNSET
    mean_rating: float | Unset = UNSET
    workflow_id: str | Unset = UNSET
    agent_id: str | Unset = UNSET
    node_id: str | Unset = UNSET
    signal: SignalKind | Unset = UNSET
    since: str | Unset = UNSET
    until: str | Unset = UNSET


class FeedbackSummary(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Counts over a window of whole hours, in groups.

    Periods are ordered by time, other groups by size.
    """

    by: SummaryBy
    since: str
    until: str
    total: FeedbackGroup
    groups: list[FeedbackGroup]


class RunSelection(Closed, frozen=True, kw_only=True):
    """A selection of runs by the filters of the run list. Without a status, ended runs.

    `flagged`, `rated`, `corrected` and `label` select by annotations.
    """

    status: list[RunStatus] = []
    workflow_id: str | Unset = UNSET
    tag: str | Unset = UNSET
    parent_run_id: str | Unset = UNSET
    since: str | Unset = UNSET
    until: str | Unset = UNSET
    flagged: bool | Unset = UNSET
    rated: bool | Unset = UNSET
    corrected: bool | Unset = UNSET
    label: NonEmpty | Unset = UNSET


class RubricItem(Closed, frozen=True, kw_only=True):
    """A signal that a reviewer gives, and its question."""

    kind: SignalKind
    question: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    labels: Annotated[list[NonEmpty], msgspec.Meta(max_length=100)] = []
    required: bool = True

    def __post_init__(self) -> None:
        if self.labels and self.kind != "label":
            raise ValueError(f"unknown field `labels` for a question of kind {self.kind}")


def _require_one_choice(chosen: object, selection: object) -> None:
    if (chosen is UNSET) == (selection is UNSET):
        raise ValueError("needs either `filter` or `runIds`")


class CreateQueue(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/queues`: the runs, the rubric and the reviewers.

    Without reviewers, every key that may annotate can review. With an `overlap` of two or more,
    each run gets that many reviews, and their agreement is counted.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    rubric: Annotated[list[RubricItem], msgspec.Meta(min_length=1, max_length=4)]
    filter: RunSelection | Unset = UNSET
    run_ids: _ChosenRuns | Unset = UNSET
    reviewers: Annotated[list[NonEmpty], msgspec.Meta(max_length=100)] = []
    overlap: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    lock_minutes: Annotated[int, msgspec.Meta(ge=1, le=1440)] = 30
    most_items: _Count = 1000

    def __post_init__(self) -> None:
        _require_one_choice(self.run_ids, self.filter)
        if len({item.kind for item in self.rubric}) < len(self.rubric):
            raise ValueError("`rubric` has the same kind of signal twice")
        if self.reviewers and len(set(self.reviewers)) < self.overlap:
            raise ValueError("`overlap` is larger than the number of reviewers")


class QueueProgress(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The progress of a queue. `agreement` is the share of runs whose reviews all agree."""

    items: int
    finished: int
    locked: int
    reviews: int
    compared: int
    agreed: int
    agreement: float | Unset = UNSET


class Queue(Document, frozen=True, kw_only=True):
    """A review queue."""

    queue_id: str
    name: str
    rubric: list[RubricItem]
    overlap: int
    lock_minutes: int
    most_items: int
    created_at: str
    created_by: str
    reviewers: list[str] = []
    filter: RunSelection | Unset = UNSET
    progress: QueueProgress | Unset = UNSET


class QueueItem(Document, frozen=True, kw_only=True):
    """A run to review, locked for the caller until the lock expires."""

    queue_id: str
    run_id: str
    locked_until: str
    rubric: list[RubricItem]
    status_url: str
    events_url: str


class CreateReview(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/queues/{queueId}/items/{runId}:done`: the answers to the rubric."""

    annotations: Annotated[list[AnnotationCreate], msgspec.Meta(min_length=1, max_length=4)]


class ReviewTaken(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The stored annotations of a review, and whether the run has all required reviews."""

    queue_id: str
    run_id: str
    reviews: int
    finished: bool
    annotations: list[Annotation]


class CreateJudge(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/judges`: the judging workflow, its agent, and the runs to judge.

    The judging run gets the inputs `run`, `events` and `eventsLeftOut`, or the inputs of
    `inputMapping`, such as `{"answer": "run.outputs.text"}`.
    """

    workflow_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    agent_id: AgentId
    filter: RunSelection | Unset = UNSET
    run_ids: _ChosenRuns | Unset = UNSET
    input_mapping: dict[str, NonEmpty] = {}
    most_runs: _Count = 1000

    def __post_init__(self) -> None:
        _require_one_choice(self.run_ids, self.filter)


class JudgedRun(Document, frozen=True, kw_only=True):
    """The result of judging one run: the judging run, and its annotation or the reason for none."""

    run_id: str
    state: JudgedState
    judge_run_id: str | Unset = UNSET
    annotation_id: str | Unset = UNSET
    reason: str | Unset = UNSET


class Judge(Document, frozen=True, kw_only=True):
    """A workflow that judges ended runs."""

    judge_id: str
    workflow_id: str
    agent_id: str
    state: Literal["running", "done"]
    created_at: str
    created_by: str
    counts: dict[JudgedState, int]
    input_mapping: dict[str, str] = {}
    filter: RunSelection | Unset = UNSET
    items: list[JudgedRun] | Unset = UNSET
    next_cursor: str | Unset = UNSET
