"""Small drawings of the fleet: bars on one scale for all rows, and lines on a fixed axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.console.words import count, number, tone
from wopr.protocol.fleet import Bucket, CheckpointAggregate, Outcomes
from wopr.runtime.fleet_rules import convergence_bucket

# What is there is seen, however long the longest bar is; in per cent of it.
_NARROWEST: Final = 0.6
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_EDGE = 96, 24, 4
# As many places as a series can have, so that a step is a run in every row.
_SPARK_PLACES: Final = 30


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar, in per cent of the longest bar there can be."""

    x: float
    width: float
    tone: str
    title: str


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Counts side by side, and the same in words."""

    segments: Sequence[Segment]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A series of scores from 0 at the bottom to 1 at the top, the last of them marked."""

    points: str
    x: float
    y: float
    bucket: Bucket
    label: str
    width: int = _SPARK_WIDTH
    height: int = _SPARK_HEIGHT
    edge: int = _SPARK_EDGE


def outcome_bar(outcomes: Outcomes, most: int) -> StackedBar:
    """How an agent's runs ended; `most` is the number of runs that a full bar stands for."""
    counts: Mapping[str, int] = msgspec.structs.asdict(outcomes)
    return _stacked(counts, most, "runs")


def audit_bar(checkpoint: CheckpointAggregate, most: int) -> StackedBar:
    """What a checkpoint said; `most` is the number of results that a full bar stands for."""
    said = {"pass": checkpoint.passed, "fail": checkpoint.failed, "warn": checkpoint.warned}
    return _stacked(said, most, "results")


def _stacked(counts: Mapping[str, int], most: int, unit: str) -> StackedBar:
    found = {name: number for name, number in counts.items() if number}
    segments: list[Segment] = []
    x = 0.0
    for name, amount in found.items():
        width = max(100 * amount / max(most, 1), _NARROWEST)
        segments.append(Segment(x, width, tone(name), f"{count(amount)} {name}"))
        x += width
    told = ", ".join(segment.title for segment in segments)
    return StackedBar(segments, f"{count(sum(found.values()))} {unit}: {told}")


def sparkline(scores: Sequence[float]) -> Spark | None:
    """The latest scores, oldest first; nothing without any."""
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
            f"convergence of the last {len(scores)} scored runs, from 0 to 1: "
            f"lowest {min(scores):.2f}, last {scores[-1]:.2f}"
        ),
    )


def _places(scores: Sequence[float]) -> Iterable[tuple[float, float]]:
    """The newest is at the right edge, whatever the number of runs."""
    step = (_SPARK_WIDTH - 2 * _SPARK_EDGE) / (_SPARK_PLACES - 1)
    for place, score in enumerate(reversed(scores[-_SPARK_PLACES:])):
        height = _SPARK_HEIGHT - 2 * _SPARK_EDGE
        yield _SPARK_WIDTH - _SPARK_EDGE - place * step, _SPARK_EDGE + (1 - score) * height
