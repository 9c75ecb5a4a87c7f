"""Rows of the fleet's tables, read and written."""

from __future__ import annotations

from typing import Final

from wopr.store.port.fleet import AgentRun, AuditRow, FleetRun
from wopr.store.sql.dialect import Parameter, Row

RUN_COLUMNS: Final = (
    "run_id, kind, source, lines, started_at, last_event, ended_at, outcome, hidden_at, pushed_at"
)
AGENT_COLUMNS: Final = (
    "run_id, agent_id, started_at, last_event, status, task, model, step, tool_calls, "
    "audits_passed, audits_failed, audits_warned, blocked_at, ended_at, outcome, duration_s, score, "
    "totals"
)

AUDIT_COLUMNS: Final = "line, at, checkpoint_id, result"

AgentValue = Parameter | float


def fleet_run(row: Row) -> FleetRun:
    """A row of `RUN_COLUMNS`."""
    return FleetRun(
        run_id=row[0],
        kind=row[1],
        source=row[2],
        lines=row[3],
        started_at=row[4],
        last_event=row[5],
        ended_at=row[6],
        outcome=row[7],
        hidden_at=row[8],
        pushed_at=row[9],
    )


def run_values(run: FleetRun) -> tuple[Parameter, ...]:
    """The values of `RUN_COLUMNS`."""
    return (
        run.run_id,
        run.kind,
        run.source,
        run.lines,
        run.started_at,
        run.last_event,
        run.ended_at,
        run.outcome,
        run.hidden_at,
        run.pushed_at,
    )


def agent_run(row: Row) -> AgentRun:
    """A row of `AGENT_COLUMNS`."""
    return AgentRun(
        run_id=row[0],
        agent_id=row[1],
        started_at=row[2],
        last_event=row[3],
        status=row[4],
        task=row[5],
        model=row[6],
        step=row[7],
        tool_calls=row[8],
        audits_passed=row[9],
        audits_failed=row[10],
        audits_warned=row[11],
        blocked_at=row[12],
        ended_at=row[13],
        outcome=row[14],
        duration_s=row[15],
        score=row[16],
        totals=row[17],
    )


def agent_values(agent: AgentRun) -> tuple[AgentValue, ...]:
    """The values of `AGENT_COLUMNS`, and then those that are looked up by."""
    return (
        agent.run_id,
        agent.agent_id,
        agent.started_at,
        agent.last_event,
        agent.status,
        agent.task,
        agent.model,
        agent.step,
        agent.tool_calls,
        agent.audits_passed,
        agent.audits_failed,
        agent.audits_warned,
        agent.blocked_at,
        agent.ended_at,
        agent.outcome,
        agent.duration_s,
        agent.score,
        agent.totals,
        agent.duration_bin,
        agent.score_units,
    )


def audit_row(row: Row) -> AuditRow:
    """A row of `AUDIT_COLUMNS`."""
    return AuditRow(line=row[0], at=row[1], checkpoint_id=row[2], result=row[3])
