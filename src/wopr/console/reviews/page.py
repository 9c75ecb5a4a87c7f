"""The reviews page: queues, feedback statistics, charts and judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import quote, urlencode

from wopr.console.page import Page, PageRequest
from wopr.console.runs.annotations import AnnotationLine, annotations_of
from wopr.http.operation import read_cursor, write_cursor
from wopr.http.request import whole_number
from wopr.http.response import Response
from wopr.http.routes.feedback import check_feedback_enabled
from wopr.protocol.documents import Unset, to_iso, to_millis
from wopr.protocol.errors import Refused
from wopr.protocol.resources.reviews import (
    FeedbackGroup,
    FeedbackSummary,
    Judge,
    JudgedRun,
    Queue,
    SummaryBy,
)
from wopr.store.port.feedback import DAY_MS, HOUR_MS, LONGEST_BY_HOUR_MS

STARS: Final = (1, 2, 3, 4, 5)
# Heights in pixels: the chart of stars above, the chart of numbers of annotations below.
TOP, STARS_HIGH, COUNTS_HIGH, GAP = 10, 110, 44, 16
_MAX_TIME_LABELS: Final = 6


@dataclass(frozen=True, slots=True)
class PeriodColumn:
    """The bar and the dot of one hour or day. Horizontal values are in per cent."""

    x: float
    left: float
    width: float
    bar_y: float
    bar_height: float
    dot_y: float | None
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """The line between two mean ratings."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class AxisLabel:
    """A label on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class RatingChart:
    """Ratings over time. The axis of stars is always from 1 to 5."""

    columns: Sequence[PeriodColumn]
    lines: Sequence[Line]
    stars: Sequence[AxisLabel]
    times: Sequence[AxisLabel]
    most: int
    baseline: float
    height: float


def rating_chart(summary: FeedbackSummary) -> RatingChart:
    """Draw a summary by time: mean rating and number of annotations per hour or day."""
    since, until = to_millis(summary.since), to_millis(summary.until)
    step = HOUR_MS if until - since <= LONGEST_BY_HOUR_MS else DAY_MS
    most = max((group.annotations for group in summary.groups), default=0)
    columns = [_column(group, since, until, step, most) for group in summary.groups]
    rated = [column for column in columns if column.dot_y is not None]
    baseline = TOP + STARS_HIGH + GAP + COUNTS_HIGH
    return RatingChart(
        columns=columns,
        lines=[
            Line(one.x, one.dot_y or 0, other.x, other.dot_y or 0) for one, other in pairwise(rated)
        ],
        stars=[AxisLabel(_height(stars), str(stars)) for stars in STARS],
        times=_times(since, until, step),
        most=most,
        baseline=baseline,
        height=baseline + 18,
    )


def _height(rating: float) -> float:
    return TOP + STARS_HIGH * (5 - rating) / 4


def _column(group: FeedbackGroup, since: int, until: int, step: int, most: int) -> PeriodColumn:
    start = since if isinstance(group.since, Unset) else to_millis(group.since)
    share = 100 * step / (until - since)
    left = 100 * (start - since) / (until - since)
    bar = COUNTS_HIGH * group.annotations / most if most else 0
    mean = group.mean_rating
    return PeriodColumn(
        x=min(left + share / 2, 100),
        left=left + share * 0.15,
        width=max(min(share * 0.7, 100 - left), 0.2),
        bar_y=TOP + STARS_HIGH + GAP + COUNTS_HIGH - bar,
        bar_height=bar,
        dot_y=None if isinstance(mean, Unset) else _height(mean),
        title=_title(group),
    )


def _title(group: FeedbackGroup) -> str:
    start = "" if isinstance(group.since, Unset) else group.since[:16].replace("T", " ")
    mean = "" if isinstance(group.mean_rating, Unset) else f", {group.mean_rating:.2f} stars"
    others = f"{group.corrections} corrected, {group.flags} flagged, {group.labels} labelled"
    return f"{start}: {group.ratings} rated{mean}, {others}"


def _times(since: int, until: int, step: int) -> list[AxisLabel]:
    """Return the labels of the time axis: a few whole hours or days."""
    count = max((until - since) // step, 1)
    every = -(-count // _MAX_TIME_LABELS)
    first = -(-since // step) * step
    instants = range(first, until, step * every)
    return [AxisLabel(100 * (at - since) / (until - since), _label(at, step)) for at in instants]


def _label(instant: int, step: int) -> str:
    text = to_iso(instant)
    return text[11:16] if step == HOUR_MS else text[5:10]


PAGE_QUEUES: Final = 20
MAX_ROWS: Final = 30
WINDOWS: Final = {
    "1d": ("day", DAY_MS),
    "7d": ("week", 7 * DAY_MS),
    "30d": ("30 days", 30 * DAY_MS),
    "90d": ("90 days", 90 * DAY_MS),
}
_DEFAULT: Final = "30d"


async def show_reviews(request: PageRequest) -> Response:
    """Show the queues with their progress, and the feedback of a window in charts."""
    window = request.query.get("window", _DEFAULT)
    if window not in WINDOWS:
        raise Refused(f"window must be one of {', '.join(WINDOWS)}", field="window")
    queues, next_page = await _queues(request)
    by_time = await _summary(request, window, "time")
    return await request.page(
        "reviews.html",
        queues=queues,
        next_page=next_page,
        window=window,
        windows={name: (words, _link(request, name)) for name, (words, _) in WINDOWS.items()},
        chart=rating_chart(by_time),
        total=by_time.total,
        by_workflow=(await _summary(request, window, "workflow")).groups[:MAX_ROWS],
        by_agent=(await _summary(request, window, "agent")).groups[:MAX_ROWS],
        runs_query=_runs_query(request),
        workflow_id=request.query.get("workflowId", ""),
        agent_id=request.query.get("agentId", ""),
    )


async def _summary(request: PageRequest, window: str, by: SummaryBy) -> FeedbackSummary:
    return await request.host.feedback.summaries.read(
        request.tenant,
        by,
        since=request.now - WINDOWS[window][1],
        workflow_id=request.query.get("workflowId"),
        agent_id=request.query.get("agentId"),
    )


def _runs_query(request: PageRequest) -> str:
    """Return the filter of the page for links to the run list, which has no filter by agent."""
    workflow_id = request.query.get("workflowId", "")
    return "&" + urlencode({"workflowId": workflow_id}) if workflow_id else ""


def _link(request: PageRequest, window: str) -> str:
    kept = {
        name: request.query[name] for name in ("workflowId", "agentId") if name in request.query
    }
    return "/reviews?" + urlencode(kept | {"window": window})


async def _queues(request: PageRequest) -> tuple[list[Queue], str]:
    after = read_cursor(request.query.get("cursor"))
    queues = request.host.feedback.queues
    found, last = await queues.page(request.tenant, after, PAGE_QUEUES)
    with_progress = [await queues.read(request.tenant, queue.queue_id) for queue in found]
    next_page = "" if last is None else "/reviews?" + urlencode({"cursor": write_cursor(last)})
    return with_progress, next_page


PAGE_JUDGED: Final = 50


@dataclass(frozen=True, slots=True)
class JudgedRunLine:
    """The result of a judge for one run, with its annotation."""

    judged: JudgedRun
    note: AnnotationLine | None


async def show_judge(request: PageRequest) -> Response:
    """Show the progress of a judge and its results, in the order of its runs."""
    cursor = request.query.get("cursor")
    after = -1 if cursor is None else whole_number("cursor", cursor)
    judge = await request.host.feedback.judges.read(
        request.tenant, request.http.path["judge_id"], after=after, limit=PAGE_JUDGED
    )
    items = [] if isinstance(judge.items, Unset) else judge.items
    return await request.page(
        "judge.html",
        judge=judge,
        lines=[JudgedRunLine(item, await _note(request, judge, item)) for item in items],
    )


async def _note(request: PageRequest, judge: Judge, item: JudgedRun) -> AnnotationLine | None:
    """Return the annotation of a result; None if it is not among the first of the run."""
    if isinstance(item.annotation_id, Unset):
        return None
    notes = await annotations_of(request.host.store, request.tenant, item.run_id)
    return next((n for n in notes.all if n.annotation_id == item.annotation_id), None)


async def find_judge(request: PageRequest) -> Response:
    """Redirect to the judge with the id of the form."""
    name = request.query.get("id", "").strip()
    if not name:
        raise Refused("Enter the id of a judge.", field="id")
    found = await request.host.feedback.judges.read(request.tenant, name, after=-1, limit=0)
    return request.redirect(f"/reviews/judges/{quote(found.judge_id, safe='')}")


PAGES: Final = (
    Page(
        name="reviews",
        path="/reviews",
        get=show_reviews,
        scope="runs:read",
        check_enabled=check_feedback_enabled,
    ),
    Page(
        name="find-judge",
        path="/reviews/judges",
        get=find_judge,
        scope="runs:read",
        check_enabled=check_feedback_enabled,
    ),
    Page(
        name="judge",
        path="/reviews/judges/{judge_id}",
        get=show_judge,
        scope="runs:read",
        check_enabled=check_feedback_enabled,
    ),
)
