"""From totals to the rows of the fleet's views (sections 10 and 11)."""

from __future__ import annotations

from collections.abc import Iterable

from wopr.fleet.instants import from_millis
from wopr.fleet.statistics import (
    QUANTILES,
    between,
    convergence_series,
    flakiness,
    flakiness_bucket,
    is_regressed,
    mean_of,
    severity,
)
from wopr.protocol.fleet import AgentAggregate, CheckpointAggregate, Outcomes, Sort
from wopr.store.port.fleet import AgentTotals, CheckpointTotals


def agent_rows(
    totals: Iterable[AgentTotals], *, start: int | None, sort: Sort
) -> list[AgentAggregate]:
    """A row for each agent, the busiest first or the one that needs somebody most.

    `start` is the beginning of the window; a regression is told while its run lies in it.
    """
    rows = [_agent_row(each, start) for each in totals]
    rows.sort(key=lambda row: row.agent_id)
    if sort == "severity":
        rows.sort(key=lambda row: (row.severity, row.last_seen), reverse=True)
    else:
        rows.sort(key=lambda row: row.run_count, reverse=True)
    return rows


def _agent_row(totals: AgentTotals, start: int | None) -> AgentAggregate:
    ended = totals.converged + totals.partial + totals.escaped + totals.aborted
    regressed = _regressed(totals, start)
    p50, p95 = _percentiles(totals, ended)
    return AgentAggregate(
        agent_id=totals.agent_id,
        run_count=totals.runs,
        outcomes=Outcomes(
            converged=totals.converged,
            partial=totals.partial,
            escaped=totals.escaped,
            aborted=totals.aborted,
            unknown=totals.runs - ended,
        ),
        in_flight=totals.waiting,
        duration_p50_s=p50,
        duration_p95_s=p95,
        mean_convergence=mean_of(totals.score_units, totals.scored),
        convergence_series=convergence_series(totals.scores[::-1]),
        last_seen=from_millis(totals.last_seen),
        regressed=regressed,
        severity=severity(
            regressed=regressed,
            escaped=totals.escaped,
            aborted=totals.aborted,
            partial=totals.partial,
            in_flight=totals.waiting,
        ),
    )


def _percentiles(totals: AgentTotals, ended: int) -> tuple[float | None, float | None]:
    if not ended:
        return None, None
    (low, high), (low95, high95) = totals.durations
    half, most = QUANTILES
    return between(low, high, ended, half), between(low95, high95, ended, most)


def _regressed(totals: AgentTotals, start: int | None) -> bool:
    last = totals.latest[0] if totals.latest else None
    is_fresh = last is not None and (start is None or last.last_event >= start)
    return is_fresh and is_regressed([ending.outcome for ending in reversed(totals.latest)])


def checkpoint_rows(totals: Iterable[CheckpointTotals]) -> list[CheckpointAggregate]:
    """A row for each checkpoint, the most undecided first, then the one with more results."""
    rows = [_checkpoint_row(each) for each in totals]
    return sorted(rows, key=lambda row: (-row.flakiness, -row.total, row.checkpoint_id))


def _checkpoint_row(totals: CheckpointTotals) -> CheckpointAggregate:
    value = flakiness(totals.passed, totals.failed)
    return CheckpointAggregate(
        checkpoint_id=totals.checkpoint_id,
        total=totals.passed + totals.failed + totals.warned,
        passed=totals.passed,
        failed=totals.failed,
        warned=totals.warned,
        flakiness=value,
        bucket=flakiness_bucket(value),
        last_fail_run_id=totals.last_fail_run_id,
    )
