from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fleet_rows import is_in_flight, is_in_window, mean, percentile
from wopr.kahn import statistics
from wopr.kahn.statistics import (
    RetentionAction,
    convergence_bucket,
    convergence_series,
    flakiness,
    flakiness_bucket,
    is_regressed,
    read_window,
    retention_action,
    severity,
)
from wopr.protocol.errors import Refused
from wopr.protocol.resources.fleet import AgentOutcome, Bucket

NOW = datetime(2026, 3, 4, 5, 6, 7)
MOMENT = timedelta(milliseconds=1)
COUNTS = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("values", "quantile", "expected"),
    [
        ([], 0.5, None),
        ([7.25], 0.5, 7.25),
        ([7.25], 0.95, 7.25),
        ([4, 1, 3, 2], 0.5, 2.5),
        ([4, 1, 3, 2], 0.95, 3.85),
        ([1, 2, 3], 0, 1),
        ([1, 2, 3], 1, 3),
        ([0.1, 0.2], 0.5, 0.15),
    ],
)
def test_a_percentile_is_interpolated_between_its_neighbours(
    values: list[float], quantile: float, expected: float | None
) -> None:
    assert percentile(values, quantile) == expected


def test_a_mean_is_rounded_so_that_stores_agree() -> None:
    assert mean([]) is None
    assert mean([1, 0, 0]) == 0.333333
    assert mean([0.1] * 10) == 0.1


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, 0),
        ({"escaped": 1}, 10),
        ({"escaped": 1, "aborted": 1}, 20),
        ({"aborted": 20}, 200),
        ({"aborted": 21}, 200),
        ({"partial": 1}, 1),
        ({"partial": 200}, 200),
        ({"partial": 201}, 200),
        ({"in_flight": 1}, 5),
        ({"in_flight": 9}, 5),
        ({"aborted": 999, "partial": 999, "in_flight": 999}, 405),
    ],
)
def test_severity_adds_bounded_parts(counts: dict[str, int], expected: int) -> None:
    rest = {"escaped": 0, "aborted": 0, "partial": 0, "in_flight": 0}

    assert severity(regressed=False, **(rest | counts)) == expected
    assert severity(regressed=True, **(rest | counts)) == expected + 1000


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_any_regression_outranks_any_backlog(a: int, b: int, c: int, d: int) -> None:
    backlog = severity(regressed=False, escaped=a, aborted=b, partial=c, in_flight=d)
    fresh = severity(regressed=True, escaped=0, aborted=0, partial=0, in_flight=0)

    assert backlog <= 405 < fresh


def test_the_weights_are_exported_by_name() -> None:
    assert (
        statistics.REGRESSION_WEIGHT,
        statistics.FAILURE_WEIGHT,
        statistics.FAILURE_CEILING,
        statistics.PARTIAL_WEIGHT,
        statistics.PARTIAL_CEILING,
        statistics.IN_FLIGHT_WEIGHT,
    ) == (1000, 10, 200, 1, 200, 5)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], False),
        (["partial"], False),
        (["converged", "partial"], True),
        (["converged", "escaped"], True),
        (["converged", "aborted"], True),
        (["converged", "converged"], False),
        (["partial", "partial"], False),
        (["converged", "partial", "partial"], False),
        (["converged", "partial", "converged"], False),
    ],
)
def test_an_agent_has_regressed_when_its_last_run_got_worse(
    outcomes: list[AgentOutcome], expected: bool
) -> None:
    assert is_regressed(outcomes) is expected


@pytest.mark.parametrize(
    ("passed", "failed", "value", "colour"),
    [
        (0, 0, 0.0, "green"),
        (10, 0, 0.0, "green"),
        (0, 10, 0.0, "green"),
        (5, 5, 1.0, "red"),
        (9, 1, 0.2, "amber"),
        (10, 1, 0.1818, "green"),
        (3, 1, 0.5, "red"),
        (1, 3, 0.5, "red"),
    ],
)
def test_a_check_is_flaky_when_its_results_alternate(
    passed: int, failed: int, value: float, colour: Bucket
) -> None:
    assert flakiness(passed, failed) == value
    assert flakiness_bucket(value) == colour


@pytest.mark.parametrize(
    ("score", "colour"),
    [
        (1.0, "green"),
        (0.9, "green"),
        (0.8999, "amber"),
        (0.6, "amber"),
        (0.5999, "red"),
        (0, "red"),
    ],
)
def test_a_score_has_the_colour_of_its_bucket(score: float, colour: Bucket) -> None:
    assert convergence_bucket(score) == colour


def test_a_series_contains_the_latest_thirty() -> None:
    assert convergence_series([n / 100 for n in range(40)]) == [n / 100 for n in range(10, 40)]


@pytest.mark.parametrize("window", ["24h", "7d", "all"])
def test_a_window_is_parsed(window: str) -> None:
    assert read_window(window) == window


@pytest.mark.parametrize("window", ["30d", "", "7D", "7d "])
def test_an_unknown_window_is_refused_with_the_valid_ones(window: str) -> None:
    with pytest.raises(Refused, match="24h, 7d, all") as refused:
        read_window(window)

    assert refused.value.status == 400


def test_a_run_is_in_the_window_of_its_last_event() -> None:
    week = timedelta(days=7)

    assert is_in_window(NOW - week, "7d", NOW)
    assert not is_in_window(NOW - week - MOMENT, "7d", NOW)
    assert not is_in_window(NOW - week, "24h", NOW)
    assert is_in_window(datetime(1970, 1, 1), "all", NOW)


def test_an_agent_without_an_end_is_in_flight_for_a_day() -> None:
    assert is_in_flight(NOW - timedelta(hours=24), NOW)
    assert not is_in_flight(NOW - timedelta(hours=24) - MOMENT, NOW)


@pytest.mark.parametrize(
    ("age", "hidden_for", "expected"),
    [
        (timedelta(days=90) - MOMENT, None, "active"),
        (timedelta(days=90), None, "soft_delete"),
        (timedelta(days=500), None, "soft_delete"),
        (timedelta(days=91), timedelta(0), "noop"),
        (timedelta(days=98), timedelta(days=7) - MOMENT, "noop"),
        (timedelta(days=98), timedelta(days=7), "hard_delete"),
    ],
)
def test_a_run_is_kept_then_hidden_then_removed(
    age: timedelta, hidden_for: timedelta | None, expected: RetentionAction
) -> None:
    hidden_at = None if hidden_for is None else NOW - hidden_for

    assert retention_action(NOW - age, hidden_at, NOW, timedelta(days=90)) == expected


def test_a_run_without_a_limit_is_kept_forever() -> None:
    assert retention_action(NOW - timedelta(days=5000), None, NOW, None) == "active"
