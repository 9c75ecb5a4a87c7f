"""Reads of the totals of KAHN runs: exact, at a cost that does not grow with the runs.

A quantile of durations is found by rank: first the stretch, then the bin, then the value.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from wopr.protocol.resources.fleet import Sort
from wopr.store.port.fleet import (
    ALL,
    AgentRunEnd,
    AgentTotals,
    CheckpointTotals,
    Since,
    TotalsPage,
)
from wopr.store.tables.dialect import Row
from wopr.store.tables.fleet.counters import (
    AGENTS,
    CHECKPOINTS,
    NO_START,
    SPAN_STARTS,
    STRETCH_BITS,
    add,
    agent_counts,
    audit_counts,
    with_span_of_all,
)
from wopr.store.tables.statements import Lookup, LookupPlan


class RankPosition(NamedTuple):
    """A stretch or a bin, and the rank of the wanted value in it."""

    number: int
    rank: int


class Durations:
    """The durations of one agent in a span, and the values around some quantiles.

    `stretches` has the stored totals. `between` corrects them, by bin, for the period between the
    stored start of the span and the start that the reader needs.
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
        """Return the stretches whose bins must be read."""
        return sorted({place.number for place in self._places})

    def narrow(self, bins: Mapping[int, Mapping[int, int]]) -> None:
        """Go from stretches to bins, with the number of durations in each bin."""
        counts = {stretch: dict(each) for stretch, each in bins.items()}
        for place, runs in self._between.items():
            if place >> STRETCH_BITS in counts:
                _add(counts[place >> STRETCH_BITS], place, runs)
        self._places = [_places(counts[stretch], [rank])[0] for stretch, rank in self._places]

    @property
    def bins(self) -> list[int]:
        """Return the bins whose values must be read."""
        return sorted({place.number for place in self._places})

    def around(self, values: Mapping[int, Sequence[float]]) -> tuple[tuple[float, float], ...]:
        """Return the two values around each quantile, with the values of each bin."""
        ordered = {place: sorted(each) for place, each in values.items()}
        found = [ordered[place][rank] for place, rank in self._places]
        return tuple(zip(found[::2], found[1::2], strict=True))


def _neighbours(count: int, quantile: float) -> tuple[int, int]:
    below = math.floor((count - 1) * quantile)
    return below, min(below + 1, count - 1)


def _places(counts: Mapping[int, int], ranks: Sequence[int]) -> list[RankPosition]:
    """Return the position of the value of each rank."""
    ordered = sorted(counts.items())
    return [_place(ordered, rank) for rank in ranks]


def _place(ordered: Sequence[tuple[int, int]], rank: int) -> RankPosition:
    for number, runs in ordered:
        if rank < runs:
            return RankPosition(number, rank)
        rank -= runs
    raise ValueError("the rank is beyond the values")


def _add(counts: dict[int, int], place: int, runs: int) -> None:
    counts[place] = counts.get(place, 0) + runs


class Span(NamedTuple):
    """A span: the start of its stored totals, and the start that the reader needs."""

    name: str
    stored_start: int
    since: int

    @property
    def between(self) -> tuple[int, int]:
        """Return the period that the stored totals must be corrected for."""
        return min(self.stored_start, self.since), max(self.stored_start, self.since)

    @property
    def factor(self) -> int:
        """Return the factor of the runs of that period: -1 if they must be subtracted."""
        return -1 if self.since > self.stored_start else 1


def span_of(starts: Mapping[str, int], span: str, since: Since) -> Span:
    """Return a span of a tenant with these stored starts."""
    stored_start = starts.get(span, NO_START)
    return Span(span, stored_start, stored_start if span == ALL else since[span])


_AGENT: Final = f"""
SELECT agent_id, {", ".join(AGENTS.sums)} FROM fleet_agents
WHERE tenant = ? AND span = ? AND agent_id = ?
"""
_BY_RUNS: Final = f"""
SELECT agent_id, {", ".join(AGENTS.sums)} FROM fleet_agents WHERE tenant = ? AND span = ?
ORDER BY runs DESC, agent_id LIMIT ? OFFSET ?
"""
# The agents with the worst outcomes first. The regressions of a page are computed by its reader.
_BY_FAILURES: Final = f"""
SELECT agent_id, {", ".join(AGENTS.sums)} FROM fleet_agents WHERE tenant = ? AND span = ?
ORDER BY 10 * (escaped + aborted) + partial DESC, runs DESC, agent_id LIMIT ? OFFSET ?
"""
_ORDERS: Final[dict[Sort, str]] = {"runs": _BY_RUNS, "severity": _BY_FAILURES}
_STRETCHES: Final = """
SELECT stretch, runs FROM fleet_stretches WHERE tenant = ? AND span = ? AND agent_id = ?
"""
_CHECKPOINTS: Final = f"""
SELECT checkpoint_id, {", ".join(CHECKPOINTS.sums)} FROM fleet_checkpoints
WHERE tenant = ? AND span = ?
ORDER BY
    CASE
        WHEN passed = 0 OR failed = 0 THEN 0.0
        WHEN passed < failed THEN 2.0 * passed / (passed + failed)
        ELSE 2.0 * failed / (passed + failed)
    END DESC,
    passed + failed + warned DESC, checkpoint_id
LIMIT ? OFFSET ?
"""
# The period between the stored start of a span and the start that the reader needs.
_AGENTS_BETWEEN: Final = """
SELECT agent_id, outcome, score_units FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ?
"""
_BINS_BETWEEN: Final = """
SELECT agent_id, duration_bin FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ? AND duration_bin IS NOT NULL
"""
_AUDITS_BETWEEN: Final = """
SELECT checkpoint_id, result FROM fleet_audits WHERE tenant = ? AND at >= ? AND at < ?
"""
_LAST_FAIL: Final = """
SELECT run_id FROM fleet_audits
WHERE tenant = ? AND checkpoint_id = ? AND result = 'fail'
ORDER BY at DESC, run_id DESC LIMIT 1
"""
_BINS: Final = """
SELECT duration_bin, runs FROM fleet_bins
WHERE tenant = ? AND agent_id = ? AND span = ? AND duration_bin >= ? AND duration_bin < ?
"""
_IN_BIN: Final = """
SELECT duration_s FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND duration_bin = ? AND last_event >= ?
"""
_LAST_SEEN: Final = """
SELECT last_event FROM fleet_agent_runs WHERE tenant = ? AND agent_id = ?
ORDER BY last_event DESC LIMIT 1
"""
_LATEST: Final = """
SELECT ended_at, run_id, last_event, outcome FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND ended_at IS NOT NULL
ORDER BY ended_at DESC, run_id DESC LIMIT 2
"""
_SCORES: Final = """
SELECT ended_at, run_id, score FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND score IS NOT NULL AND ended_at >= ?
ORDER BY ended_at DESC, run_id DESC LIMIT ?
"""
_SCORES_TOUCHED: Final = """
SELECT ended_at, run_id, score FROM fleet_agent_runs
WHERE tenant = ? AND agent_id = ? AND score IS NOT NULL AND last_event > ended_at
    AND last_event >= ? AND ended_at < ?
"""


def read_totals(
    tenant: str, span: str, since: Since, page: TotalsPage, quantiles: Sequence[float], scores: int
) -> LookupPlan[list[AgentTotals]]:
    """Read the totals of a page of the agents with a run in the span."""
    [[found]] = yield [Lookup(SPAN_STARTS, [(tenant,)])]
    starts = with_span_of_all(found)
    view, recent = span_of(starts, span, since), span_of(starts, next(iter(since)), since)
    [rows], between = yield [
        _page_lookup(tenant, span, page),
        Lookup(_AGENTS_BETWEEN, [(tenant, *view.between), (tenant, *recent.between)]),
    ]
    is_whole = page.agent_id is None and page.start == 0 and len(rows) < page.limit
    names = {row[0] for row in rows} if not is_whole else None
    counts = _counts(rows, _rows_of(names, between[0]), view)
    shown = sorted(counts)
    lately, stretches, [bins] = yield [
        Lookup(_AGENT, [(tenant, recent.name, name) for name in shown]),
        Lookup(_STRETCHES, [(tenant, view.name, name) for name in shown]),
        Lookup(_BINS_BETWEEN, [(tenant, *view.between)]),
    ]
    waiting = _counts((row for found in lately for row in found), between[1], recent)
    corrections = _bins_between(_rows_of(counts, bins), view)
    agents = {
        name: _AgentReads(
            name, counts[name], Durations(dict(counted), corrections[name], quantiles)
        )
        for name, counted in zip(shown, stretches, strict=True)
    }
    yield from _read_agents(tenant, view, agents, scores)
    return [each.totals(_waiting(waiting.get(name))) for name, each in agents.items()]


def _page_lookup(tenant: str, span: str, page: TotalsPage) -> Lookup:
    if page.agent_id is not None:
        return Lookup(_AGENT, [(tenant, span, page.agent_id)])
    return Lookup(_ORDERS[page.sort], [(tenant, span, page.limit, page.start)])


def _rows_of(names: Collection[str] | None, rows: Iterable[Row]) -> Iterable[Row]:
    """Return the rows that begin with one of these names; None means all names."""
    return rows if names is None else (row for row in rows if row[0] in names)


class _AgentReads:
    """The values that are read for one agent."""

    def __init__(self, agent_id: str, counts: Sequence[int], durations: Durations) -> None:
        self.agent_id = agent_id
        self.durations = durations
        self.last_seen = 0
        self.latest: list[Row] = []
        self.scores: list[Row] = []
        self.values: dict[int, list[float]] = {}
        self._counts = counts

    def totals(self, waiting: int) -> AgentTotals:
        """Return the totals of the agent."""
        runs, converged, partial, escaped, aborted, scored, units = self._counts
        return AgentTotals(
            agent_id=self.agent_id,
            runs=runs,
            converged=converged,
            partial=partial,
            escaped=escaped,
            aborted=aborted,
            scored=scored,
            score_units=units,
            waiting=waiting,
            last_seen=self.last_seen,
            latest=tuple(
                AgentRunEnd(
                    run_id=run_id, ended_at=ended_at, last_event=last_event, outcome=outcome
                )
                for ended_at, run_id, last_event, outcome in _newest(self.latest)
            ),
            scores=tuple(score for _, _, score in _newest(self.scores)),
            durations=self.durations.around(self.values),
        )


def _read_agents(
    tenant: str, span: Span, agents: dict[str, _AgentReads], scores: int
) -> LookupPlan[None]:
    names = [(tenant, agent_id) for agent_id in agents]
    wanted = [
        (name, stretch) for name, each in agents.items() for stretch in each.durations.stretches
    ]
    seen, latest, scored, bins = yield [
        Lookup(_LAST_SEEN, names),
        Lookup(_LATEST, names),
        Lookup(_SCORES, [(*name, span.since, scores) for name in names]),
        Lookup(_BINS, [(tenant, name, span.name, *_bounds(stretch)) for name, stretch in wanted]),
    ]
    for each, [(last,)], ends, points in zip(agents.values(), seen, latest, scored, strict=True):
        each.last_seen, each.latest, each.scores = last, ends, points
    by_stretch: dict[str, dict[int, dict[int, int]]] = defaultdict(dict)
    for (name, stretch), rows in zip(wanted, bins, strict=True):
        by_stretch[name][stretch] = dict(rows)
    for name, each in agents.items():
        each.durations.narrow(by_stretch[name])
    yield from _read_values(tenant, span, agents, scores)


def _read_values(
    tenant: str, span: Span, agents: dict[str, _AgentReads], scores: int
) -> LookupPlan[None]:
    places = [(name, place) for name, each in agents.items() for place in each.durations.bins]
    # With too few scores, look for runs that ended before the span, but have later events in it.
    short = [
        name for name, each in agents.items() if len(each.scores) < scores and span.since > NO_START
    ]
    values, touched = yield [
        Lookup(_IN_BIN, [(tenant, name, place, span.since) for name, place in places]),
        Lookup(_SCORES_TOUCHED, [(tenant, name, span.since, span.since) for name in short]),
    ]
    for (name, place), rows in zip(places, values, strict=True):
        agents[name].values[place] = [row[0] for row in rows]
    for name, rows in zip(short, touched, strict=True):
        found = agents[name].scores
        agents[name].scores = [*found, *_newest(rows)[: scores - len(found)]]


def read_checkpoints(
    tenant: str, span: str, since: Since, limit: int, start: int
) -> LookupPlan[list[CheckpointTotals]]:
    """Read the totals of a page of the checkpoints with a result in the span."""
    [[found]] = yield [Lookup(SPAN_STARTS, [(tenant,)])]
    view = span_of(with_span_of_all(found), span, since)
    [rows], [between] = yield [
        Lookup(_CHECKPOINTS, [(tenant, span, limit, start)]),
        Lookup(_AUDITS_BETWEEN, [(tenant, *view.between)]),
    ]
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(CHECKPOINTS.sums))
    counts.update((checkpoint_id, numbers) for checkpoint_id, *numbers in rows)
    is_whole = start == 0 and len(rows) < limit
    for checkpoint_id, result in _rows_of(None if is_whole else {*counts}, between):
        add(counts[checkpoint_id], audit_counts(result), view.factor)
    # If a failed audit is in the span, so is the latest failed audit of all time.
    failing = [name for name, (_, failed, _) in counts.items() if failed]
    [fails] = yield [Lookup(_LAST_FAIL, [(tenant, name) for name in failing])]
    last_fails = {name: row[0] for name, [row] in zip(failing, fails, strict=True)}
    return [
        CheckpointTotals(
            checkpoint_id=name,
            passed=passed,
            failed=failed,
            warned=warned,
            last_fail_run_id=last_fails.get(name),
        )
        for name, (passed, failed, warned) in sorted(counts.items())
        if passed or failed or warned
    ]


def _counts(rows: Iterable[Row], between: Iterable[Row], span: Span) -> dict[str, list[int]]:
    """Return the totals of each agent with a run in the span."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(AGENTS.sums))
    counts.update((agent_id, numbers) for agent_id, *numbers in rows)
    for agent_id, outcome, units in between:
        add(counts[agent_id], agent_counts(outcome, units), span.factor)
    return {agent_id: numbers for agent_id, numbers in counts.items() if numbers[0]}


def _bins_between(rows: Iterable[Row], span: Span) -> dict[str, Counter[int]]:
    """Return the corrections of the durations of each agent, by bin."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for agent_id, place in rows:
        found[agent_id][place] += span.factor
    return found


def _bounds(stretch: int) -> tuple[int, int]:
    return stretch << STRETCH_BITS, (stretch + 1) << STRETCH_BITS


def _newest(rows: Iterable[Row]) -> list[Row]:
    """Sort rows that begin with `(ended_at, run_id)`, newest first."""
    return sorted(rows, key=lambda row: (row[0], row[1]), reverse=True)


def _waiting(counts: Sequence[int] | None) -> int:
    """Return the number of runs that have not ended."""
    return 0 if counts is None else counts[0] - sum(counts[1:5])
