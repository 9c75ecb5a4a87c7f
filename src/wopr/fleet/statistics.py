"""The sums behind the fleet views (sections 9 to 11): pure, so every store gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from wopr.fleet.events import AgentOutcome
from wopr.protocol.errors import Refused
from wopr.protocol.fleet import Bucket, Window

Retention: TypeAlias = Literal["active", "soft_delete", "hard_delete", "noop"]

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
# The most that an agent can have without a regression: any regression outranks it.
BACKLOG_CEILING: Final = FAILURE_CEILING + PARTIAL_CEILING + IN_FLIGHT_WEIGHT

CONVERGENCE_GREEN: Final = 0.9
CONVERGENCE_AMBER: Final = 0.6
FLAKINESS_RED: Final = 0.5
FLAKINESS_AMBER: Final = 0.2
SERIES_LENGTH: Final = 30
UNITS: Final = 10**9
QUANTILES: Final = (0.5, 0.95)
IN_FLIGHT_FOR: Final = timedelta(hours=24)

# How long the lines of the host's own runs are kept, unless the operator says otherwise.
OWN_RUNS_KEPT_FOR: Final = timedelta(days=90)
SOFT_DELETED_FOR: Final = timedelta(days=7)


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """Interpolate between the two values nearest to a quantile; nothing has no percentile."""
    if not values:
        return None
    ordered = sorted(values)
    below = math.floor((len(ordered) - 1) * quantile)
    above = min(below + 1, len(ordered) - 1)
    return between(ordered[below], ordered[above], len(ordered), quantile)


def between(below: float, above: float, count: int, quantile: float) -> float:
    """Interpolate between the two of so many ordered values that a quantile lies between."""
    place = (count - 1) * quantile
    return rounded(below + (above - below) * (place - math.floor(place)))


def mean(values: Sequence[float]) -> float | None:
    """The mean; nothing has none."""
    return mean_of(sum(map(in_units, values)), len(values))


def in_units(score: float) -> int:
    """A score in whole billionths: sums of them depend neither on their order nor on the store."""
    return round(score * UNITS)


def mean_of(units: int, count: int) -> float | None:
    """The mean of so many scores, given their sum in whole units."""
    return rounded(units / count / UNITS) if count else None


def rounded(value: float) -> float:
    """Round a statistic for the wire, so that two stores agree on its last digit."""
    return round(value, 6)


def severity(*, regressed: bool, escaped: int, aborted: int, partial: int, in_flight: int) -> int:
    """How soon somebody should look: a fresh regression outranks any backlog."""
    return (
        REGRESSION_WEIGHT * regressed
        + min(FAILURE_WEIGHT * (escaped + aborted), FAILURE_CEILING)
        + min(PARTIAL_WEIGHT * partial, PARTIAL_CEILING)
        + IN_FLIGHT_WEIGHT * (in_flight > 0)
    )


def is_regressed(outcomes: Sequence[AgentOutcome]) -> bool:
    """Tell from an agent's ended runs, in order of end, whether the last one fell back."""
    return len(outcomes) >= 2 and outcomes[-2] == "converged" and outcomes[-1] != "converged"


def flakiness(passed: int, failed: int) -> float:
    """How undecided a check is: 0 when it always says the same, 1 when it passes half the time."""
    total = passed + failed
    # The form with the absolute value gives 0.19999999999999996 for nine passes and one failure.
    return round(2 * min(passed, failed) / total, 4) if total else 0.0


def flakiness_bucket(value: float) -> Bucket:
    """The colour of a flakiness."""
    return "red" if value >= FLAKINESS_RED else "amber" if value >= FLAKINESS_AMBER else "green"


def convergence_bucket(score: float) -> Bucket:
    """The colour of a convergence score."""
    if score >= CONVERGENCE_GREEN:
        return "green"
    return "amber" if score >= CONVERGENCE_AMBER else "red"


def convergence_series(scores: Sequence[float]) -> list[float]:
    """The latest scores, in order of end, as a sparkline shows them."""
    return [rounded(score) for score in scores[-SERIES_LENGTH:]]


def is_in_flight(last_event: datetime, now: datetime) -> bool:
    """Tell whether an agent without an end is still at it, or has died."""
    return now - last_event <= IN_FLIGHT_FOR


def read_window(text: str) -> Window:
    """Read a window, or refuse it and name those there are."""
    for window in WINDOWS:
        if window == text:
            return window
    allowed = ", ".join(get_args(Window))
    raise Refused(f"window must be one of {allowed}, not {text!r}", field="window")


def is_in_window(last_event: datetime, window: Window, now: datetime) -> bool:
    """Tell whether a run counts: its last event is not older than the window."""
    length = WINDOWS[window]
    return length is None or now - last_event <= length


def retention(
    pushed_at: datetime,
    soft_deleted_at: datetime | None,
    now: datetime,
    kept_for: timedelta | None,
) -> Retention:
    """Say what is to be done with a run's rows.

    A run expires so long after its last push and is then hidden; seven days after that it is
    deleted. `noop` is a hidden run that waits for that day. Without a limit no run expires.
    """
    if soft_deleted_at is not None:
        return "hard_delete" if now - soft_deleted_at >= SOFT_DELETED_FOR else "noop"
    is_over = kept_for is not None and now - pushed_at >= kept_for
    return "soft_delete" if is_over else "active"
