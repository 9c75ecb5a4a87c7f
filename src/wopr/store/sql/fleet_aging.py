"""What the fleet's totals lose when a span moves on or a run is hidden."""

from __future__ import annotations

from typing import Final

from wopr.store.sql.asking import Asking, Question
from wopr.store.sql.fleet_counting import Counting
from wopr.store.sql.fleet_rows import AGENT_COLUMNS, AUDIT_COLUMNS, agent_run, audit_row

_AGENTS_BETWEEN: Final = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs
WHERE tenant = ? AND last_event >= ? AND last_event < ?
"""
_AUDITS_BETWEEN: Final = f"""
SELECT {AUDIT_COLUMNS} FROM fleet_audits WHERE tenant = ? AND at >= ? AND at < ?
"""
_NEXT_AGENT: Final = """
SELECT last_event FROM fleet_agent_runs WHERE tenant = ? AND last_event >= ?
ORDER BY last_event LIMIT 1
"""
_NEXT_AUDIT: Final = "SELECT at FROM fleet_audits WHERE tenant = ? AND at >= ? ORDER BY at LIMIT 1"
_AGENTS_OF_RUN: Final = f"""
SELECT {AGENT_COLUMNS} FROM fleet_agent_runs WHERE tenant = ? AND run_id = ?
"""
_AUDITS_OF_RUN: Final = f"""
SELECT {AUDIT_COLUMNS} FROM fleet_audits WHERE tenant = ? AND run_id = ?
"""

# A span that is far behind catches up hour by hour, so that no transaction is long.
_STEP_MS: Final = 3_600_000


def read_settling(tenant: str, mark: int, since: int, counting: Counting) -> Asking[int]:
    """Count off what a span loses on its next step from `mark` to `since`; answers where that is."""
    [agents], [audits] = yield [
        Question(_NEXT_AGENT, [(tenant, mark)]),
        Question(_NEXT_AUDIT, [(tenant, mark)]),
    ]
    # Nothing before the next run or audit that the span will lose need be looked at.
    first = min((row[0] for row in (*agents, *audits)), default=since)
    end = min(since, first + _STEP_MS)
    yield from _uncount(
        counting,
        Question(_AGENTS_BETWEEN, [(tenant, mark, end)]),
        Question(_AUDITS_BETWEEN, [(tenant, mark, end)]),
    )
    return end


def read_hiding(tenant: str, run_id: str, counting: Counting) -> Asking[None]:
    """Count off all of a run."""
    yield from _uncount(
        counting,
        Question(_AGENTS_OF_RUN, [(tenant, run_id)]),
        Question(_AUDITS_OF_RUN, [(tenant, run_id)]),
    )


def _uncount(counting: Counting, agents: Question, audits: Question) -> Asking[None]:
    [agent_rows], [audit_rows] = yield [agents, audits]
    for row in agent_rows:
        counting.agent(agent_run(row), -1)
    for row in audit_rows:
        counting.audit(audit_row(row), -1)
