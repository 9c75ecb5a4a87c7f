from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fleet_rows import (
    DAY,
    HOUR,
    NOON,
    WINDOWS,
    aggregate,
    audit,
    checkpoints,
    end,
    expected_aggregate,
    expected_checkpoints,
    held_lines,
    moved,
    push,
    start,
)
from wopr.kahn.statistics import window_starts
from wopr.store.port import Store

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

_tenants = count()

_ages = st.sampled_from(
    [0, 1, HOUR, DAY - 1, DAY, DAY + 1, 6 * DAY, 7 * DAY, 7 * DAY + 1, 60 * DAY]
)
_durations = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0000000000000002, 1.5, 2.0, 1e-320, 1e300]),
    st.floats(0, 1e6),
)
_scores = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.0078125, 0.1234565]), st.floats(0, 1))
_agents = st.sampled_from(["coder", "reviewer"])


@st.composite
def _logs(draw: st.DrawFn) -> dict[str, list[bytes]]:
    """Return some runs of one or two agents, some without an end, some with lines after it."""
    runs: dict[str, list[bytes]] = {}
    for number in range(draw(st.integers(1, 6))):
        run_id = f"run-{number}"
        lines: list[bytes] = []
        for agent_id in draw(st.lists(_agents, min_size=1, max_size=2, unique=True)):
            lines += draw(_agent_lines(run_id, agent_id))
        if draw(st.booleans()):
            lines.append(audit(run_id, "run:scoped", draw(_results), at=NOON - draw(_ages)))
        runs[run_id] = lines
    return runs


_results = st.sampled_from(["pass", "fail", "warn"])


@st.composite
def _agent_lines(draw: st.DrawFn, run_id: str, agent_id: str) -> list[bytes]:
    at = NOON - draw(_ages)
    lines = [start(run_id, agent_id, at)] if draw(st.booleans()) else []
    for step in range(draw(st.integers(0 if lines else 1, 2))):
        lines.append(moved(run_id, step, "response", agent_id, at + step))
    if draw(st.booleans()):
        outcome = draw(st.sampled_from(["converged", "partial", "escaped", "aborted"]))
        lines.append(end(run_id, outcome, draw(_durations), draw(_scores), agent_id, at + 10))
    if draw(st.booleans()):
        touched = NOON - draw(_ages)
        lines.append(
            audit(run_id, draw(st.sampled_from(["a:b", "c"])), draw(_results), agent_id, touched)
        )
    return lines


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(logs=_logs(), seed=st.integers(0, 2**32))
async def test_views_built_in_any_order_equal_those_of_all_lines(
    store: Store, logs: dict[str, list[bytes]], seed: int
) -> None:
    tenant = f"tenant-{next(_tenants)}"
    randint = Random(seed).randint
    sent = dict.fromkeys(logs, 0)
    clock = NOON - 2 * DAY
    while any(sent[run_id] < len(lines) for run_id, lines in logs.items()):
        pushed: list[bytes] = []
        for run_id, lines in logs.items():
            # Some of the earlier lines, and then some more.
            first = randint(0, sent[run_id])
            last = min(len(lines), sent[run_id] + randint(0, 3))
            pushed += lines[first:last]
            sent[run_id] = last
        clock += randint(0, DAY)
        await push(store, tenant, pushed, clock)
        if randint(0, 3) == 0:
            await store.fleet_advance_spans(window_starts(clock))

    for run_id, lines in logs.items():
        assert await held_lines(store, tenant, run_id) == lines
    for now in (NOON - 2 * DAY, NOON, clock, clock + 7 * DAY):
        for window in WINDOWS:
            found = await aggregate(store, tenant, window, now)
            assert found == expected_aggregate(logs, window, now)
            audits = await checkpoints(store, tenant, window, now)
            assert audits == expected_checkpoints(logs, window, now)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(logs=_logs(), hidden=st.sets(st.integers(0, 5)))
async def test_a_hidden_run_is_in_no_view(
    store: Store, logs: dict[str, list[bytes]], hidden: set[int]
) -> None:
    tenant = f"tenant-{next(_tenants)}"
    gone = [run_id for number, run_id in enumerate(logs) if number in hidden]
    for lines in logs.values():
        await push(store, tenant, lines)

    await store.fleet_hide([(tenant, run_id) for run_id in gone], NOON)

    left = {run_id: lines for run_id, lines in logs.items() if run_id not in gone}
    for window in WINDOWS:
        assert await aggregate(store, tenant, window) == expected_aggregate(left, window, NOON)
        assert await checkpoints(store, tenant, window) == expected_checkpoints(left, window, NOON)
    assert await store.fleet_size(tenant) == len(left)
    for run_id, lines in logs.items():
        assert await held_lines(store, tenant, run_id) == lines
