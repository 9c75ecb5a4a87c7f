"""An agent's durations by rank, of which no more than a few are read.

A rank is counted off in stretches, then in the bins of one, and then among the values of one bin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wopr.store.sql.fleet_counting import STRETCH_BITS


class Place(NamedTuple):
    """A stretch or a bin, and how many values in it come before the one looked for."""

    number: int
    rank: int


class Durations:
    """The durations of one agent in a span, and the values around some quantiles of them.

    `stretches` are the totals; `between` are the bins of what makes up for the distance to the
    span's mark.
    """

    def __init__(
        self,
        stretches: Mapping[int, int],
        between: Mapping[int, int],
        quantiles: Sequence[float],
    ) -> None:
        self._between = between
        counts = dict(stretches)
        for place, runs in between.items():
            _add(counts, place >> STRETCH_BITS, runs)
        count = sum(counts.values())
        ranks = [rank for each in quantiles for rank in _neighbours(count, each)] if count else []
        self._places = _places(counts, ranks)

    @property
    def stretches(self) -> list[int]:
        """The stretches whose bins must be known."""
        return sorted({place.number for place in self._places})

    def narrow(self, bins: Mapping[int, Mapping[int, int]]) -> None:
        """Go from stretches to bins, given how many durations each bin of a stretch has."""
        counts = {stretch: dict(each) for stretch, each in bins.items()}
        for place, runs in self._between.items():
            if place >> STRETCH_BITS in counts:
                _add(counts[place >> STRETCH_BITS], place, runs)
        self._places = [_places(counts[stretch], [rank])[0] for stretch, rank in self._places]

    @property
    def bins(self) -> list[int]:
        """The bins whose values must be known."""
        return sorted({place.number for place in self._places})

    def around(self, values: Mapping[int, Sequence[float]]) -> tuple[tuple[float, float], ...]:
        """The two values around each quantile, given the values of each bin; none of nothing."""
        ordered = {place: sorted(each) for place, each in values.items()}
        found = [ordered[place][rank] for place, rank in self._places]
        return tuple(zip(found[::2], found[1::2], strict=True))


def _neighbours(count: int, quantile: float) -> tuple[int, int]:
    below = math.floor((count - 1) * quantile)
    return below, min(below + 1, count - 1)


def _places(counts: Mapping[int, int], ranks: Sequence[int]) -> list[Place]:
    """Where the value of each rank is."""
    ordered = sorted(counts.items())
    return [_place(ordered, rank) for rank in ranks]


def _place(ordered: Sequence[tuple[int, int]], rank: int) -> Place:
    for number, runs in ordered:
        if rank < runs:
            return Place(number, rank)
        rank -= runs
    raise ValueError("the rank is beyond the values")


def _add(counts: dict[int, int], place: int, runs: int) -> None:
    counts[place] = counts.get(place, 0) + runs
