"""What is looked up of one agent's runs in a span: the latest of them, and durations by rank."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from wopr.store.port.fleet import Ending
from wopr.store.sqlite.fleet_counting import STRETCH_BITS
from wopr.store.sqlite.reader import Parameter, Row

_BINS = """
SELECT duration_bin, runs FROM fleet_bins
WHERE tenant = ? AND agent_id = ? AND span = ? AND duration_bin >= ? AND duration_bin < ?
"""
_IN_BIN = """
SELECT duration_s FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND duration_bin = ? AND last_event >= ?
"""
_LAST_SEEN = """
SELECT last_event FROM fleet_agent_runs WHERE tenant = ? AND agent_id = ?
ORDER BY last_event DESC LIMIT 1
"""
_LATEST = """
SELECT run_id, ended_at, last_event, outcome FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND ended_at IS NOT NULL
ORDER BY ended_at DESC, run_id DESC LIMIT 2
"""
_SCORES = """
SELECT score FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND score IS NOT NULL AND ended_at >= ?
ORDER BY ended_at DESC, run_id DESC LIMIT ?
"""
_SCORES_TOUCHED = """
SELECT ended_at, run_id, score FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND score IS NOT NULL AND last_event > ended_at
    AND last_event >= ? AND ended_at < ?
"""

EVER: Final = -(2**63)


class Span(NamedTuple):
    """A span as a reader sees it: its mark, and where it should begin."""

    name: str
    mark: int
    since: int

    @property
    def between(self) -> tuple[int, int, int]:
        """From where to where the totals are wrong, and what makes up for each run there."""
        if self.since > self.mark:
            return self.mark, self.since, -1
        return self.since, self.mark, 1


class OfAgent:
    """One agent's runs in a span."""

    def __init__(
        self, connection: sqlite3.Connection, tenant: str, agent_id: str, span: Span
    ) -> None:
        self._connection = connection
        self._key = (tenant, agent_id)
        self._span = span

    def _rows(self, sql: str, *parameters: Parameter) -> list[Row]:
        return self._connection.execute(sql, (*self._key, *parameters)).fetchall()

    def last_seen(self) -> int:
        """The time of its latest event of all."""
        latest: int = self._rows(_LAST_SEEN)[0][0]
        return latest

    def latest(self) -> tuple[Ending, ...]:
        """The two that ended last of all."""
        return tuple(
            Ending(run_id=row[0], ended_at=row[1], last_event=row[2], outcome=row[3])
            for row in self._rows(_LATEST)
        )

    def scores(self, limit: int) -> tuple[float, ...]:
        """The latest scores."""
        since = self._span.since
        found = [row[0] for row in self._rows(_SCORES, since, limit)]
        if len(found) < limit and since > EVER:
            touched = self._rows(_SCORES_TOUCHED, since, since)
            found += [row[2] for row in sorted(touched, reverse=True)]
        return tuple(found[:limit])

    def bins(self, stretch: int) -> dict[int, int]:
        """How many durations the totals have in each bin of a stretch."""
        first = stretch << STRETCH_BITS
        rows = self._rows(_BINS, self._span.name, first, first + (1 << STRETCH_BITS))
        return {row[0]: row[1] for row in rows}

    def in_bin(self, place: int) -> list[float]:
        """The durations of a bin in order."""
        return sorted(row[0] for row in self._rows(_IN_BIN, place, self._span.since))


class Durations:
    """An agent's durations by rank, of which no more than a few are read.

    A rank is counted off in stretches, then in the bins of one, and then among the values of one
    bin. `between` are the bins of what makes up for the distance to the mark.
    """

    def __init__(
        self, of_agent: OfAgent, stretches: Mapping[int, int], between: Mapping[int, int]
    ) -> None:
        self._of_agent = of_agent
        self._between = between
        self._stretches = dict(stretches)
        for place, runs in between.items():
            stretch = place >> STRETCH_BITS
            self._stretches[stretch] = self._stretches.get(stretch, 0) + runs
        self._ordered = sorted(self._stretches.items())
        self._bins: dict[int, list[tuple[int, int]]] = {}
        self._values: dict[int, list[float]] = {}

    def around(self, quantiles: Iterable[float]) -> tuple[tuple[float, float], ...]:
        """The two values around each quantile; none of nothing."""
        count = sum(runs for _, runs in self._ordered)
        if not count:
            return ()
        pairs = [_neighbours(count, quantile) for quantile in quantiles]
        return tuple((self._value(below), self._value(above)) for below, above in pairs)

    def _value(self, rank: int) -> float:
        stretch, rank = _place(self._ordered, rank)
        place, rank = _place(self._bins_of(stretch), rank)
        if place not in self._values:
            self._values[place] = self._of_agent.in_bin(place)
        return self._values[place][rank]

    def _bins_of(self, stretch: int) -> list[tuple[int, int]]:
        if stretch not in self._bins:
            bins = self._of_agent.bins(stretch)
            for place, runs in self._between.items():
                if place >> STRETCH_BITS == stretch:
                    bins[place] = bins.get(place, 0) + runs
            self._bins[stretch] = sorted(bins.items())
        return self._bins[stretch]


def _neighbours(count: int, quantile: float) -> tuple[int, int]:
    below = math.floor((count - 1) * quantile)
    return below, min(below + 1, count - 1)


def _place(counts: Sequence[tuple[int, int]], rank: int) -> tuple[int, int]:
    """Where the value of a rank is, and how many values there come before it."""
    for place, runs in counts:
        if rank < runs:
            return place, rank
        rank -= runs
    raise ValueError("the rank is beyond the values")
