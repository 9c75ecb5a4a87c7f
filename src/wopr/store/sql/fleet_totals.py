"""The fleet's totals as they are read: exact, at a cost that does not grow with the runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from wopr.protocol.fleet import Sort
from wopr.store.port.fleet import AgentTotals, CheckpointTotals, Ending, Since, TotalsPage
from wopr.store.sql.asking import Asking, Question
from wopr.store.sql.dialect import Row
from wopr.store.sql.fleet_counting import (
    AGENTS,
    CHECKPOINTS,
    NO_MARK,
    STRETCH_BITS,
    add,
    agent_counts,
    audit_counts,
    with_all,
)
from wopr.store.sql.fleet_durations import Durations
from wopr.store.sql.fleet_spans import MARKS, Span, span_of

_AGENT: Final = f"""
SELECT agent_id, {", ".join(AGENTS.sums)} FROM fleet_agents
WHERE tenant = ? AND span = ? AND agent_id = ?
"""
_BY_RUNS: Final = f"""
SELECT agent_id, {", ".join(AGENTS.sums)} FROM fleet_agents WHERE tenant = ? AND span = ?
ORDER BY runs DESC, agent_id LIMIT ? OFFSET ?
"""
# Those whose ended runs did not converge; a regression is looked up for each of a page.
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
# What lies between the mark of a span and the reader's own clock.
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
) -> Asking[list[AgentTotals]]:
    """Totals of a page of the agents with a run in the span."""
    [[found]] = yield [Question(MARKS, [(tenant,)])]
    marks = with_all(found)
    view, recent = span_of(marks, span, since), span_of(marks, next(iter(since)), since)
    [rows], between = yield [
        _page_question(tenant, span, page),
        Question(_AGENTS_BETWEEN, [(tenant, *view.between), (tenant, *recent.between)]),
    ]
    is_whole = page.agent_id is None and page.start == 0 and len(rows) < page.limit
    names = {row[0] for row in rows} if not is_whole else None
    counts = _counts(rows, _of(names, between[0]), view)
    shown = sorted(counts)
    lately, stretches, [bins] = yield [
        Question(_AGENT, [(tenant, recent.name, name) for name in shown]),
        Question(_STRETCHES, [(tenant, view.name, name) for name in shown]),
        Question(_BINS_BETWEEN, [(tenant, *view.between)]),
    ]
    waiting = _counts((row for found in lately for row in found), between[1], recent)
    corrections = _bins_between(_of(counts, bins), view)
    of_agents = {
        name: _OfAgent(name, counts[name], Durations(dict(of_agent), corrections[name], quantiles))
        for name, of_agent in zip(shown, stretches, strict=True)
    }
    yield from _read_agents(tenant, view, of_agents, scores)
    return [each.totals(_waiting(waiting.get(name))) for name, each in of_agents.items()]


def _page_question(tenant: str, span: str, page: TotalsPage) -> Question:
    if page.agent_id is not None:
        return Question(_AGENT, [(tenant, span, page.agent_id)])
    return Question(_ORDERS[page.sort], [(tenant, span, page.limit, page.start)])


def _of(names: Collection[str] | None, rows: Iterable[Row]) -> Iterable[Row]:
    """The rows that begin with one of these names; None stands for all names."""
    return rows if names is None else (row for row in rows if row[0] in names)


class _OfAgent:
    """What is looked up of one agent."""

    def __init__(self, agent_id: str, counts: Sequence[int], durations: Durations) -> None:
        self.agent_id = agent_id
        self.durations = durations
        self.last_seen = 0
        self.latest: list[Row] = []
        self.scores: list[Row] = []
        self.values: dict[int, list[float]] = {}
        self._counts = counts

    def totals(self, waiting: int) -> AgentTotals:
        """All of it."""
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
                Ending(run_id=run_id, ended_at=ended_at, last_event=last_event, outcome=outcome)
                for ended_at, run_id, last_event, outcome in _newest(self.latest)
            ),
            scores=tuple(score for _, _, score in _newest(self.scores)),
            durations=self.durations.around(self.values),
        )


def _read_agents(
    tenant: str, span: Span, of_agents: dict[str, _OfAgent], scores: int
) -> Asking[None]:
    names = [(tenant, agent_id) for agent_id in of_agents]
    wanted = [
        (name, stretch) for name, each in of_agents.items() for stretch in each.durations.stretches
    ]
    seen, latest, scored, bins = yield [
        Question(_LAST_SEEN, names),
        Question(_LATEST, names),
        Question(_SCORES, [(*name, span.since, scores) for name in names]),
        Question(_BINS, [(tenant, name, span.name, *_bounds(stretch)) for name, stretch in wanted]),
    ]
    for each, [(last,)], ends, points in zip(of_agents.values(), seen, latest, scored, strict=True):
        each.last_seen, each.latest, each.scores = last, ends, points
    by_stretch: dict[str, dict[int, dict[int, int]]] = defaultdict(dict)
    for (name, stretch), rows in zip(wanted, bins, strict=True):
        by_stretch[name][stretch] = dict(rows)
    for name, each in of_agents.items():
        each.durations.narrow(by_stretch[name])
    yield from _read_values(tenant, span, of_agents, scores)


def _read_values(
    tenant: str, span: Span, of_agents: dict[str, _OfAgent], scores: int
) -> Asking[None]:
    places = [(name, place) for name, each in of_agents.items() for place in each.durations.bins]
    # Where there are too few, audits that came after an end may have kept more in the span.
    short = [
        name
        for name, each in of_agents.items()
        if len(each.scores) < scores and span.since > NO_MARK
    ]
    values, touched = yield [
        Question(_IN_BIN, [(tenant, name, place, span.since) for name, place in places]),
        Question(_SCORES_TOUCHED, [(tenant, name, span.since, span.since) for name in short]),
    ]
    for (name, place), rows in zip(places, values, strict=True):
        of_agents[name].values[place] = [row[0] for row in rows]
    for name, rows in zip(short, touched, strict=True):
        found = of_agents[name].scores
        of_agents[name].scores = [*found, *_newest(rows)[: scores - len(found)]]


def read_checkpoints(
    tenant: str, span: str, since: Since, limit: int, start: int
) -> Asking[list[CheckpointTotals]]:
    """Totals of a page of the checkpoints with a result in the span."""
    [[found]] = yield [Question(MARKS, [(tenant,)])]
    view = span_of(with_all(found), span, since)
    [rows], [between] = yield [
        Question(_CHECKPOINTS, [(tenant, span, limit, start)]),
        Question(_AUDITS_BETWEEN, [(tenant, *view.between)]),
    ]
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(CHECKPOINTS.sums))
    counts.update((checkpoint_id, numbers) for checkpoint_id, *numbers in rows)
    is_whole = start == 0 and len(rows) < limit
    for checkpoint_id, result in _of(None if is_whole else {*counts}, between):
        add(counts[checkpoint_id], audit_counts(result), view.by)
    # Whichever failed audit is the latest of all is in the span if any is.
    failing = [name for name, (_, failed, _) in counts.items() if failed]
    [fails] = yield [Question(_LAST_FAIL, [(tenant, name) for name in failing])]
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
    """The numbers of each agent with a run in the span."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(AGENTS.sums))
    counts.update((agent_id, numbers) for agent_id, *numbers in rows)
    for agent_id, outcome, units in between:
        add(counts[agent_id], agent_counts(outcome, units), span.by)
    return {agent_id: numbers for agent_id, numbers in counts.items() if numbers[0]}


def _bins_between(rows: Iterable[Row], span: Span) -> dict[str, Counter[int]]:
    """What makes up for the durations of each agent that lie between, by bin."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for agent_id, place in rows:
        found[agent_id][place] += span.by
    return found


def _bounds(stretch: int) -> tuple[int, int]:
    return stretch << STRETCH_BITS, (stretch + 1) << STRETCH_BITS


def _newest(rows: Iterable[Row]) -> list[Row]:
    """Rows that begin with `(ended_at, run_id)`, newest first."""
    return sorted(rows, key=lambda row: (row[0], row[1]), reverse=True)


def _waiting(counts: Sequence[int] | None) -> int:
    """How many have not ended."""
    return 0 if counts is None else counts[0] - sum(counts[1:5])
