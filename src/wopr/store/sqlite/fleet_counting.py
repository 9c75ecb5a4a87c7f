"""The fleet's totals, changed with the lines that change them.

A rolling span has the totals of what is not older than its mark, and the mark is moved by a job.
So a run enters and leaves a span once, whenever that is, and a reader makes up for the distance
between the mark and its own clock.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from wopr.store.port.fleet import ALL, AgentRun, AuditRow, Since

_OUTCOMES: Final = ("converged", "partial", "escaped", "aborted")
_RESULTS: Final = ("pass", "fail", "warn")
# So many bins lie in a stretch, as a power of two.
STRETCH_BITS: Final = 6
# `ALL` has no mark: nothing is too old for it.
_NO_MARK: Final = -(2**63)

_MARKS = "SELECT span, since FROM fleet_spans WHERE tenant = ?"
_NEW_MARK = "INSERT OR IGNORE INTO fleet_spans (tenant, span, since) VALUES (?, ?, ?)"

_ADD_AGENT = """
INSERT INTO fleet_agents (
    tenant, span, agent_id, runs, converged, partial, escaped, aborted, scored, score_units
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, span, agent_id) DO UPDATE SET
    runs = runs + excluded.runs,
    converged = converged + excluded.converged,
    partial = partial + excluded.partial,
    escaped = escaped + excluded.escaped,
    aborted = aborted + excluded.aborted,
    scored = scored + excluded.scored,
    score_units = score_units + excluded.score_units
"""
_ADD_STRETCH = """
INSERT INTO fleet_stretches (tenant, span, agent_id, stretch, runs) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, span, agent_id, stretch) DO UPDATE SET runs = runs + excluded.runs
"""
_ADD_BIN = """
INSERT INTO fleet_bins (tenant, span, agent_id, duration_bin, runs) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, span, agent_id, duration_bin) DO UPDATE SET runs = runs + excluded.runs
"""
_ADD_CHECKPOINT = """
INSERT INTO fleet_checkpoints (tenant, span, checkpoint_id, passed, failed, warned)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, span, checkpoint_id) DO UPDATE SET
    passed = passed + excluded.passed,
    failed = failed + excluded.failed,
    warned = warned + excluded.warned
"""
_DROP_AGENT = """
DELETE FROM fleet_agents WHERE tenant = ? AND span = ? AND agent_id = ? AND runs = 0
"""
_DROP_STRETCH = """
DELETE FROM fleet_stretches
WHERE tenant = ? AND span = ? AND agent_id = ? AND stretch = ? AND runs = 0
"""
_DROP_BIN = """
DELETE FROM fleet_bins
WHERE tenant = ? AND span = ? AND agent_id = ? AND duration_bin = ? AND runs = 0
"""
_DROP_CHECKPOINT = """
DELETE FROM fleet_checkpoints
WHERE tenant = ? AND span = ? AND checkpoint_id = ? AND passed + failed + warned = 0
"""

Sums = defaultdict[tuple[str | int, ...], list[int]]


def _sums(width: int) -> Sums:
    return defaultdict(lambda: [0] * width)


class Counting:
    """Gathers changes of one tenant's totals, to be written at once."""

    def __init__(self, tenant: str, marks: Mapping[str, int]) -> None:
        self._tenant = tenant
        self._marks = marks
        self._agents = _sums(7)
        self._stretches = _sums(1)
        self._bins = _sums(1)
        self._checkpoints = _sums(3)

    def agent(self, agent: AgentRun, by: int) -> None:
        """Count an agent's run in every span that it belongs to, or with -1 no longer."""
        values = agent_counts(agent.outcome, agent.score_units)
        place = agent.duration_bin
        for span, since in self._marks.items():
            if agent.last_event < since:
                continue
            add(self._agents[span, agent.agent_id], values, by)
            if place is not None:
                self._stretches[span, agent.agent_id, place >> STRETCH_BITS][0] += by
                self._bins[span, agent.agent_id, place][0] += by

    def audit(self, audit: AuditRow, by: int) -> None:
        """Count an audit in every span that its time belongs to."""
        values = audit_counts(audit.result)
        for span, since in self._marks.items():
            if audit.at >= since:
                add(self._checkpoints[span, audit.checkpoint_id], values, by)

    def write(self, connection: sqlite3.Connection) -> None:
        """Change the totals; what then counts nothing goes."""
        for sums, add, drop in (
            (self._agents, _ADD_AGENT, _DROP_AGENT),
            (self._stretches, _ADD_STRETCH, _DROP_STRETCH),
            (self._bins, _ADD_BIN, _DROP_BIN),
            (self._checkpoints, _ADD_CHECKPOINT, _DROP_CHECKPOINT),
        ):
            changed = {key: values for key, values in sums.items() if any(values)}
            connection.executemany(add, [(self._tenant, *k, *v) for k, v in changed.items()])
            fewer = [(self._tenant, *k) for k, v in changed.items() if min(v) < 0]
            connection.executemany(drop, fewer)


def agent_counts(outcome: str | None, score_units: int | None) -> tuple[int, ...]:
    """What one run of an agent adds to the numbers of its totals."""
    scored = (0, 0) if score_units is None else (1, score_units)
    return (1, *(int(outcome == each) for each in _OUTCOMES), *scored)


def audit_counts(result: str) -> tuple[int, ...]:
    """What one audit adds to the numbers of its checkpoint."""
    return tuple(int(result == each) for each in _RESULTS)


def marks(connection: sqlite3.Connection, tenant: str) -> dict[str, int]:
    """Where each span of a tenant begins."""
    return {ALL: _NO_MARK, **dict(connection.execute(_MARKS, (tenant,)).fetchall())}


def begin_spans(connection: sqlite3.Connection, tenant: str, since: Since) -> dict[str, int]:
    """Where each span begins; one that the tenant has not had begins now."""
    found = marks(connection, tenant)
    missing = since.keys() - found.keys()
    if missing:
        connection.executemany(_NEW_MARK, [(tenant, span, since[span]) for span in missing])
        found |= {span: since[span] for span in missing}
    return found


def count_agents(counting: Counting, agents: Iterable[tuple[AgentRun | None, AgentRun]]) -> None:
    """Count agents' runs as they are now in place of what they were."""
    for before, after in agents:
        if before is not None:
            counting.agent(before, -1)
        counting.agent(after, 1)


def add(sums: list[int], values: Sequence[int], by: int) -> None:
    """Add so many times the values to the sums at their places."""
    for place, value in enumerate(values):
        sums[place] += by * value
