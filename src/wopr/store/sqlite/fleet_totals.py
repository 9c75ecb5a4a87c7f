"""The part that reads the fleet's totals: exact, at a cost that does not grow with the runs."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from wopr.store.port.fleet import ALL, AgentTotals, CheckpointTotals, Since
from wopr.store.sqlite.fleet_agents import EVER, Durations, OfAgent, Span
from wopr.store.sqlite.fleet_counting import add, agent_counts, audit_counts, marks
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.reader import Row

_AGENTS = """
SELECT agent_id, runs, converged, partial, escaped, aborted, scored, score_units
FROM fleet_agents WHERE tenant = ? AND span = ?
"""
_STRETCHES = "SELECT agent_id, stretch, runs FROM fleet_stretches WHERE tenant = ? AND span = ?"
_CHECKPOINTS = """
SELECT checkpoint_id, passed, failed, warned FROM fleet_checkpoints
WHERE tenant = ? AND span = ?
"""
# What lies between the mark of a span and the reader's own clock.
_AGENTS_BETWEEN = """
SELECT agent_id, outcome, score_units FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ?
"""
_BINS_BETWEEN = """
SELECT agent_id, duration_bin FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ? AND duration_bin IS NOT NULL
"""
_AUDITS_BETWEEN = """
SELECT checkpoint_id, result FROM fleet_audits WHERE tenant = ? AND at >= ? AND at < ?
"""
_LAST_FAIL = """
SELECT at, run_id FROM fleet_audits
WHERE tenant = ? AND checkpoint_id = ? AND result = 'fail'
ORDER BY at DESC, run_id DESC LIMIT 1
"""


class SqliteFleetTotals(Part):
    """The totals of `Fleet` on SQLite."""

    async def fleet_totals(
        self,
        tenant: str,
        span: str,
        since: Since,
        *,
        quantiles: Sequence[float],
        scores: int,
    ) -> list[AgentTotals]:
        """Totals of every agent with a run in the span."""
        work = partial(
            _totals, tenant=tenant, span=span, since=since, quantiles=quantiles, scores=scores
        )
        return await self._reader.together(work)

    async def fleet_checkpoints(
        self, tenant: str, span: str, since: Since
    ) -> list[CheckpointTotals]:
        """Totals of every checkpoint with a result in the span."""
        work = partial(_checkpoints, tenant=tenant, span=span, since=since)
        return await self._reader.together(work)


def _totals(
    connection: sqlite3.Connection,
    tenant: str,
    span: str,
    since: Since,
    quantiles: Sequence[float],
    scores: int,
) -> list[AgentTotals]:
    view = _span(connection, tenant, span, since)
    recent = _counts(connection, tenant, _span(connection, tenant, next(iter(since)), since))
    counts = _counts(connection, tenant, view)
    stretches = _stretches(connection, tenant, view)
    between = _bins_between(connection, tenant, view)
    found: list[AgentTotals] = []
    for agent_id in sorted(counts):
        runs, converged, partial_, escaped, aborted, scored, units = counts[agent_id]
        of_agent = OfAgent(connection, tenant, agent_id, view)
        durations = Durations(of_agent, stretches[agent_id], between[agent_id])
        found.append(
            AgentTotals(
                agent_id=agent_id,
                runs=runs,
                converged=converged,
                partial=partial_,
                escaped=escaped,
                aborted=aborted,
                scored=scored,
                score_units=units,
                waiting=_waiting(recent.get(agent_id)),
                last_seen=of_agent.last_seen(),
                latest=of_agent.latest(),
                scores=of_agent.scores(scores),
                durations=durations.around(quantiles),
            )
        )
    return found


def _span(connection: sqlite3.Connection, tenant: str, span: str, since: Since) -> Span:
    mark = marks(connection, tenant).get(span, EVER)
    return Span(span, mark, mark if span == ALL else since[span])


def _counts(connection: sqlite3.Connection, tenant: str, span: Span) -> dict[str, list[int]]:
    """The numbers of each agent with a run in the span."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    for agent_id, *numbers in connection.execute(_AGENTS, (tenant, span.name)):
        counts[agent_id] = numbers
    start, end, by = span.between
    for agent_id, outcome, units in connection.execute(_AGENTS_BETWEEN, (tenant, start, end)):
        add(counts[agent_id], agent_counts(outcome, units), by)
    return {agent_id: numbers for agent_id, numbers in counts.items() if numbers[0]}


def _stretches(
    connection: sqlite3.Connection, tenant: str, span: Span
) -> dict[str, dict[int, int]]:
    """How many durations of each agent are in which stretch."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for agent_id, stretch, runs in connection.execute(_STRETCHES, (tenant, span.name)):
        found[agent_id][stretch] = runs
    return found


def _bins_between(
    connection: sqlite3.Connection, tenant: str, span: Span
) -> dict[str, Counter[int]]:
    """What makes up for the durations of each agent that lie between, by bin."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    start, end, by = span.between
    for agent_id, place in connection.execute(_BINS_BETWEEN, (tenant, start, end)):
        found[agent_id][place] += by
    return found


def _waiting(counts: Sequence[int] | None) -> int:
    """How many have not ended."""
    return 0 if counts is None else counts[0] - sum(counts[1:5])


def _checkpoints(
    connection: sqlite3.Connection, tenant: str, span: str, since: Since
) -> list[CheckpointTotals]:
    view = _span(connection, tenant, span, since)
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 3)
    for checkpoint_id, *numbers in connection.execute(_CHECKPOINTS, (tenant, span)):
        counts[checkpoint_id] = numbers
    start, end, by = view.between
    for checkpoint_id, result in connection.execute(_AUDITS_BETWEEN, (tenant, start, end)):
        add(counts[checkpoint_id], audit_counts(result), by)
    return [
        CheckpointTotals(
            checkpoint_id=checkpoint_id,
            passed=passed,
            failed=failed,
            warned=warned,
            last_fail_run_id=_last_fail(connection, tenant, checkpoint_id, failed),
        )
        for checkpoint_id, (passed, failed, warned) in sorted(counts.items())
        if passed or failed or warned
    ]


def _last_fail(
    connection: sqlite3.Connection, tenant: str, checkpoint_id: str, failed: int
) -> str | None:
    if not failed:
        return None
    # Whichever is the latest of all is in the span if any is.
    row: Row = connection.execute(_LAST_FAIL, (tenant, checkpoint_id)).fetchone()
    run_id: str = row[1]
    return run_id
