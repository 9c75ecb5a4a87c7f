"""Statistics of the fleet views (sections 9 to 11): percentiles, severity, windows and rows.

The functions are pure, so the results do not depend on the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from wopr.kahn.timestamps import from_millis
from wopr.protocol.errors import Refused
from wopr.protocol.resources.fleet import (
    AgentAggregate,
    AgentOutcome,
    Bucket,
    CheckpointAggregate,
    Outcomes,
    Sort,
    Window,
)
from wopr.store.port.fleet import SCORE_UNITS, AgentTotals, CheckpointTotals

RetentionAction: TypeAlias = Literal["active", "soft_delete", "hard_delete", "noop"]

DEFAULT_WINDOW: Final[Window] = "7d"
WINDOWS: Final[dict[Window, timedelta | None]] = {
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "all": None,
}

REGRESSION_WEIGHT: Final = 1000
FAILURE_WEIGHT: Final = 10
FAILURE_CEILING: Final = 200
PARTIAL_WEIGHT: Final = 1
PARTIAL_CEILING: Final = 200
IN_FLIGHT_WEIGHT: Final = 5
CONVERGENCE_GREEN: Final = 0.9
CONVERGENCE_AMBER: Final = 0.6
FLAKINESS_RED: Final = 0.5
FLAKINESS_AMBER: Final = 0.2
SERIES_LENGTH: Final = 30
QUANTILES: Final = (0.5, 0.95)

# How long the lines of the host's own runs are stored by default.
OWN_RUNS_KEPT_FOR: Final = timedelta(days=90)
SOFT_DELETED_FOR: Final = timedelta(days=7)


def interpolate(below: float, above: float, count: int, quantile: float) -> float:
    """Interpolate a quantile between two ordered values."""
    place = (count - 1) * quantile
    return round_statistic(below + (above - below) * (place - math.floor(place)))


def mean_from_units(units: int, count: int) -> float | None:
    """Return the mean of `count` scores from the sum of their units; None without scores."""
    return round_statistic(units / count / SCORE_UNITS) if count else None


def round_statistic(value: float) -> float:
    """Round a statistic for responses, so that it does not depend on the store."""
    return round(value, 6)


def severity(*, regressed: bool, escaped: int, aborted: int, partial: int, in_flight: int) -> int:
    """Return the severity of an agent: a new regression ranks above any backlog."""
    return (
        REGRESSION_WEIGHT * regressed
        + min(FAILURE_WEIGHT * (escaped + aborted), FAILURE_CEILING)
        + min(PARTIAL_WEIGHT * partial, PARTIAL_CEILING)
        + IN_FLIGHT_WEIGHT * (in_flight > 0)
    )


def is_regressed(outcomes: Sequence[AgentOutcome]) -> bool:
    """Return whether the last of an agent's ended runs is a regression."""
    return len(outcomes) >= 2 and outcomes[-2] == "converged" and outcomes[-1] != "converged"


def flakiness(passed: int, failed: int) -> float:
    """Return the flakiness of a checkpoint: 0 if results always agree, 1 if half of them pass."""
    total = passed + failed
    # `1 - abs(passed - failed) / total` gives 0.19999999999999996 for nine passes and one failure.
    return round(2 * min(passed, failed) / total, 4) if total else 0.0


def flakiness_bucket(value: float) -> Bucket:
    """Return the colour of a flakiness."""
    return "red" if value >= FLAKINESS_RED else "amber" if value >= FLAKINESS_AMBER else "green"


def convergence_bucket(score: float) -> Bucket:
    """Return the colour of a convergence score."""
    if score >= CONVERGENCE_GREEN:
        return "green"
    return "amber" if score >= CONVERGENCE_AMBER else "red"


def convergence_series(scores: Sequence[float]) -> list[float]:
    """Return the latest scores for a sparkline, oldest first."""
    return [round_statistic(score) for score in scores[-SERIES_LENGTH:]]


def read_window(text: str) -> Window:
    """Parse a time window. Raises `Refused` for an unknown window."""
    for window in WINDOWS:
        if window == text:
            return window
    allowed = ", ".join(get_args(Window))
    raise Refused(f"window must be one of {allowed}, not {text!r}", field="window")


def retention_action(
    pushed_at: datetime,
    soft_deleted_at: datetime | None,
    now: datetime,
    kept_for: timedelta | None,
) -> RetentionAction:
    """Return what retention does with a run now.

    A run expires at `kept_for` after its last push and is then hidden; seven days later it is
    deleted. `noop` means that the run is hidden and waits to be deleted. If `kept_for` is None, no
    run expires.
    """
    if soft_deleted_at is not None:
        return "hard_delete" if now - soft_deleted_at >= SOFT_DELETED_FOR else "noop"
    is_over = kept_for is not None and now - pushed_at >= kept_for
    return "soft_delete" if is_over else "active"


_MILLISECOND = timedelta(milliseconds=1)


def window_starts(now: int) -> dict[str, int]:
    """Return the start of each rolling window; the shortest window first."""
    return {
        window: now - length // _MILLISECOND
        for window, length in WINDOWS.items()
        if length is not None
    }


def window_start(window: Window, now: int) -> int | None:
    """Return the start of a window; None for the window of all runs."""
    return window_starts(now).get(window)


def agent_rows(
    totals: Iterable[AgentTotals], *, start: int | None, sort: Sort
) -> list[AgentAggregate]:
    """Return a row for each agent, ordered by activity or by severity.

    `start` is the beginning of the window. A regression is shown while its run is in it.
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
    regressed = _has_regressed(totals, start)
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
        mean_convergence=mean_from_units(totals.score_units, totals.scored),
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
    return interpolate(low, high, ended, half), interpolate(low95, high95, ended, most)


def _has_regressed(totals: AgentTotals, start: int | None) -> bool:
    last = totals.latest[0] if totals.latest else None
    is_fresh = last is not None and (start is None or last.last_event >= start)
    return is_fresh and is_regressed([ending.outcome for ending in reversed(totals.latest)])


def checkpoint_rows(totals: Iterable[CheckpointTotals]) -> list[CheckpointAggregate]:
    """Return a row for each checkpoint, ordered by flakiness and then by the number of results."""
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
