"""Charts as numbers: where the points, bars and marks of a drawing stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wopr.protocol.documents import Unset
from wopr.protocol.reviews import FeedbackGroup, FeedbackSummary
from wopr.protocol.times import to_iso, to_millis
from wopr.store.port.feedback import DAY_MS, HOUR_MS, LONGEST_BY_HOUR_MS

STARS: Final = (1, 2, 3, 4, 5)
# Heights in pixels: stars above, the number of annotations below.
TOP, STARS_HIGH, COUNTS_HIGH, GAP = 10, 110, 44, 16
_MARKS: Final = 6


@dataclass(frozen=True, slots=True)
class Column:
    """One stretch of time: its middle in per cent, its width, its counts, its mean rating."""

    x: float
    left: float
    width: float
    bar_y: float
    bar_height: float
    dot_y: float | None
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of the line between two means."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A word on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class RatingChart:
    """Ratings over time, on axes that do not move with the numbers."""

    columns: Sequence[Column]
    lines: Sequence[Line]
    stars: Sequence[Mark]
    times: Sequence[Mark]
    most: int
    base: float
    height: float


def rating_chart(summary: FeedbackSummary) -> RatingChart:
    """Draw a summary by time: the mean rating of each stretch, and how much was said in it."""
    since, until = to_millis(summary.since), to_millis(summary.until)
    step = HOUR_MS if until - since <= LONGEST_BY_HOUR_MS else DAY_MS
    most = max((group.annotations for group in summary.groups), default=0)
    columns = [_column(group, since, until, step, most) for group in summary.groups]
    rated = [column for column in columns if column.dot_y is not None]
    base = TOP + STARS_HIGH + GAP + COUNTS_HIGH
    return RatingChart(
        columns=columns,
        lines=[
            Line(one.x, one.dot_y or 0, other.x, other.dot_y or 0) for one, other in pairwise(rated)
        ],
        stars=[Mark(_height(stars), str(stars)) for stars in STARS],
        times=_times(since, until, step),
        most=most,
        base=base,
        height=base + 18,
    )


def _height(rating: float) -> float:
    return TOP + STARS_HIGH * (5 - rating) / 4


def _column(group: FeedbackGroup, since: int, until: int, step: int, most: int) -> Column:
    start = since if isinstance(group.since, Unset) else to_millis(group.since)
    share = 100 * step / (until - since)
    left = 100 * (start - since) / (until - since)
    bar = COUNTS_HIGH * group.annotations / most if most else 0
    mean = group.mean_rating
    return Column(
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
    told = f"{group.corrections} corrected, {group.flags} flagged, {group.labels} labelled"
    return f"{start}: {group.ratings} rated{mean}, {told}"


def _times(since: int, until: int, step: int) -> list[Mark]:
    """Whole hours or days, few enough to be read."""
    count = max((until - since) // step, 1)
    every = -(-count // _MARKS)
    first = -(-since // step) * step
    instants = range(first, until, step * every)
    return [Mark(100 * (at - since) / (until - since), _label(at, step)) for at in instants]


def _label(instant: int, step: int) -> str:
    text = to_iso(instant)
    return text[11:16] if step == HOUR_MS else text[5:10]
