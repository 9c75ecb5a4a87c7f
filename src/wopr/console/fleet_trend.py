"""How an agent's runs went one after the other: their scores above, how long they took below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from wopr.console.words import duration, moment, tone
from wopr.protocol.fleet import AgentInRun

# Runs that are drawn, the newest of them.
MOST_RUNS: Final = 120
_TOP, _SCORES, _GAP, _DURATIONS, _BELOW = 8, 84, 16, 40, 2
# Where a score turns green, and where amber; the first is too near to the top for a label.
_GRID: Final = {1.0: "1", 0.9: "", 0.6: "0.6", 0.0: "0"}
# A column is not wider than this, so that a few runs do not look like many.
_WIDEST: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One run: its dot, its bar, and where a pointer finds it. Widths are in per cent."""

    x: float
    width: float
    tone: str
    # Where the score is; None for a run without one.
    dot: float | None
    bar_y: float
    bar_height: float
    href: str
    title: str

    @property
    def middle(self) -> float:
        """Where the dot stands."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class GridLine:
    """A line across, and what it stands for."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The drawing, and the same in words."""

    columns: Sequence[Column]
    grid: Sequence[GridLine]
    marks: Sequence[GridLine]
    floor: float
    height: float
    first: str
    last: str
    longest: str
    label: str


def trend(
    runs: Sequence[AgentInRun], quantiles: Sequence[tuple[str, float | None]]
) -> Trend | None:
    """Draw runs, given newest first; nothing without any that has ended."""
    drawn = [run for run in runs[:MOST_RUNS] if run.ended is not None][::-1]
    if not drawn:
        return None
    longest = max(run.duration_s for run in drawn) or 1.0
    floor = float(_TOP + _SCORES + _GAP + _DURATIONS)
    width = min(100 / len(drawn), _WIDEST)
    left = 100 - width * len(drawn)
    marks = [
        GridLine(floor - _DURATIONS * value / longest, f"{name} {duration(1000 * value)}")
        for name, value in quantiles
        if value is not None and value <= longest
    ]
    return Trend(
        columns=[
            _column(run, left + place * width, width, floor, longest)
            for place, run in enumerate(drawn)
        ],
        grid=[GridLine(_score_y(score), label) for score, label in _GRID.items()],
        marks=marks,
        floor=floor,
        height=floor + _BELOW,
        first=moment(drawn[0].started)[:16],
        last=moment(drawn[-1].started)[:16],
        longest=duration(1000 * longest),
        label=_told(drawn, longest),
    )


def _score_y(score: float) -> float:
    return _TOP + (1 - score) * _SCORES


def _column(run: AgentInRun, x: float, width: float, floor: float, longest: float) -> Column:
    tall = max(_DURATIONS * run.duration_s / longest, 1.0)
    score = run.convergence_score
    scored = "no score" if score is None else f"score {score:.2f}"
    return Column(
        x=x,
        width=width,
        tone=tone(run.outcome),
        dot=None if score is None else _score_y(score),
        bar_y=floor - tall,
        bar_height=tall,
        href=f"/fleet/runs/{quote(run.run_id, safe='')}",
        title=f"{run.run_id}: {run.outcome}, {scored}, {duration(1000 * run.duration_s)}",
    )


def _told(drawn: Sequence[AgentInRun], longest: float) -> str:
    scores = [run.convergence_score for run in drawn if run.convergence_score is not None]
    lowest = f", the lowest score {min(scores):.2f}" if scores else ""
    return (
        f"{len(drawn)} runs that have ended, oldest first: scores from 0 to 1 above{lowest}; "
        f"below how long they took, at most {duration(1000 * longest)}. The table has the same."
    )
