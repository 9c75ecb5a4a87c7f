"""Charts of the fleet: outcome bars, sparklines, and the trend of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from wopr.console.formatting import count, duration, moment, number, tone
from wopr.kahn.statistics import convergence_bucket
from wopr.protocol.resources.fleet import AgentInRun, Bucket, CheckpointAggregate, Outcomes

# Minimum width of a segment, in per cent.
_NARROWEST: Final = 0.6
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_EDGE = 96, 24, 4
# The longest series. All rows use this scale, so that one step is one run in every row.
_SPARK_PLACES: Final = 30


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar, in per cent of a full bar."""

    name: str
    x: float
    width: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Counts side by side, and the same as text."""

    segments: Sequence[Segment]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A series of scores from 0 at the bottom to 1 at the top. A dot marks the last score."""

    points: str
    x: float
    y: float
    bucket: Bucket
    label: str
    width: int = _SPARK_WIDTH
    height: int = _SPARK_HEIGHT
    edge: int = _SPARK_EDGE


def outcome_bar(outcomes: Outcomes, most: int) -> StackedBar:
    """Return the bar of an agent's outcomes. `most` is the number of runs of a full bar."""
    counts: Mapping[str, int] = msgspec.structs.asdict(outcomes)
    return _stacked_bar(counts, most, "runs")


def audit_bar(checkpoint: CheckpointAggregate, most: int) -> StackedBar:
    """Return the bar of a checkpoint's results. `most` is the number of results of a full bar."""
    counts = {"pass": checkpoint.passed, "fail": checkpoint.failed, "warn": checkpoint.warned}
    return _stacked_bar(counts, most, "results")


def _stacked_bar(counts: Mapping[str, int], most: int, unit: str) -> StackedBar:
    found = {name: number for name, number in counts.items() if number}
    segments: list[Segment] = []
    x = 0.0
    for name, amount in found.items():
        width = max(100 * amount / max(most, 1), _NARROWEST)
        segments.append(Segment(name, x, width, tone(name), f"{count(amount)} {name}"))
        x += width
    titles = ", ".join(segment.title for segment in segments)
    return StackedBar(segments, f"{count(sum(found.values()))} {unit}: {titles}")


def sparkline(scores: Sequence[float]) -> Spark | None:
    """Draw the newest scores, given oldest first; None without scores."""
    if not scores:
        return None
    places = list(_places(scores))[::-1]
    x, y = places[-1]
    return Spark(
        points=" ".join(f"{number(left)},{number(top)}" for left, top in places),
        x=x,
        y=y,
        bucket=convergence_bucket(scores[-1]),
        label=(
            f"convergence scores of the last {len(scores)} runs with a score, from 0 to 1: "
            f"lowest {min(scores):.2f}, last {scores[-1]:.2f}"
        ),
    )


def _places(scores: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Return the position of a run. The newest run is always at the right edge."""
    step = (_SPARK_WIDTH - 2 * _SPARK_EDGE) / (_SPARK_PLACES - 1)
    for place, score in enumerate(reversed(scores[-_SPARK_PLACES:])):
        height = _SPARK_HEIGHT - 2 * _SPARK_EDGE
        yield _SPARK_WIDTH - _SPARK_EDGE - place * step, _SPARK_EDGE + (1 - score) * height


# The largest number of runs in a trend.
MAX_RUNS: Final = 120
_TOP, _SCORES, _GAP, _DURATIONS, _BELOW = 8, 84, 16, 40, 2
# Scores with a grid line. Scores from 0.9 are green, from 0.6 amber. The line at 0.9 has no label
# because it is too close to the top.
_GRID: Final = {1.0: "1", 0.9: "", 0.6: "0.6", 0.0: "0"}
# A column is not wider than this, so that a few runs do not look like many.
_WIDEST: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumn:
    """One run: its dot, its bar and the area of its link. Widths are in per cent."""

    x: float
    width: float
    tone: str
    # Vertical position of the score; None for a run without a score.
    dot: float | None
    bar_y: float
    bar_height: float
    href: str
    title: str

    @property
    def middle(self) -> float:
        """Return the position of the dot."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class GridLine:
    """A grid line and its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The chart of an agent's runs, and a description of it."""

    columns: Sequence[RunColumn]
    grid: Sequence[GridLine]
    quantiles: Sequence[GridLine]
    baseline: float
    height: float
    first: str
    last: str
    longest: str
    label: str


def trend(
    runs: Sequence[AgentInRun], quantiles: Sequence[tuple[str, float | None]]
) -> Trend | None:
    """Draw runs, given newest first; None if no run has ended."""
    drawn = [run for run in runs[:MAX_RUNS] if run.ended is not None][::-1]
    if not drawn:
        return None
    longest = max(run.duration_s for run in drawn) or 1.0
    baseline = float(_TOP + _SCORES + _GAP + _DURATIONS)
    width = min(100 / len(drawn), _WIDEST)
    left = 100 - width * len(drawn)
    lines = [
        GridLine(baseline - _DURATIONS * value / longest, f"{name} {duration(1000 * value)}")
        for name, value in quantiles
        if value is not None and value <= longest
    ]
    return Trend(
        columns=[
            _column(run, left + place * width, width, baseline, longest)
            for place, run in enumerate(drawn)
        ],
        grid=[GridLine(_score_y(score), label) for score, label in _GRID.items()],
        quantiles=lines,
        baseline=baseline,
        height=baseline + _BELOW,
        first=moment(drawn[0].started)[:16],
        last=moment(drawn[-1].started)[:16],
        longest=duration(1000 * longest),
        label=_description(drawn, longest),
    )


def _score_y(score: float) -> float:
    return _TOP + (1 - score) * _SCORES


def _column(run: AgentInRun, x: float, width: float, baseline: float, longest: float) -> RunColumn:
    bar_height = max(_DURATIONS * run.duration_s / longest, 1.0)
    score = run.convergence_score
    score_text = "no score" if score is None else f"score {score:.2f}"
    return RunColumn(
        x=x,
        width=width,
        tone=tone(run.outcome),
        dot=None if score is None else _score_y(score),
        bar_y=baseline - bar_height,
        bar_height=bar_height,
        href=f"/fleet/runs/{quote(run.run_id, safe='')}",
        title=f"{run.run_id}: {run.outcome}, {score_text}, {duration(1000 * run.duration_s)}",
    )


def _description(drawn: Sequence[AgentInRun], longest: float) -> str:
    scores = [run.convergence_score for run in drawn if run.convergence_score is not None]
    lowest = f", lowest {min(scores):.2f}" if scores else ""
    return (
        f"{len(drawn)} ended runs, oldest first. Top: convergence scores from 0 to 1{lowest}. "
        f"Bottom: durations, at most {duration(1000 * longest)}. The table shows the same data."
    )
