"""The fleet on PostgreSQL while several processes write it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.support.fleet_rows import (
    DAY,
    HOUR,
    NOON,
    WINDOWS,
    aggregate,
    audit,
    batch_of,
    checkpoints,
    end,
    expected_aggregate,
    expected_checkpoints,
    held_lines,
    moved,
    new_lines,
    push,
    start,
)
from tests.support.rows import TENANT
from wopr.kahn.statistics import window_starts
from wopr.protocol.errors import SequenceTaken
from wopr.store.open import open_store
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

RUNS = 12


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[Store, Store]]:
    """Open one database from two processes."""
    first, second = await asyncio.gather(open_store(postgres_url), open_store(postgres_url))
    yield first, second
    await asyncio.gather(first.close(), second.close())


def log_of(number: int) -> list[bytes]:
    run_id, at = f"run-{number}", NOON - number * 5 * HOUR
    return [
        start(run_id, at=at),
        moved(run_id, 0, "response", at=at + 1),
        audit(run_id, "a:b", "fail" if number % 3 else "pass", "coder", at + 2),
        end(run_id, duration_s=number / 7, score=number / RUNS, at=at + 3),
    ]


async def test_spans_started_by_two_processes_at_once_are_started_once(
    two: tuple[Store, Store],
) -> None:
    found = await new_lines(two[0], TENANT, log_of(1))

    answers = await asyncio.gather(
        *(store.fleet_ingest(TENANT, batch_of(found)) for store in two), return_exceptions=True
    )

    assert [type(answer) for answer in answers if answer is not None] == [SequenceTaken]
    assert await held_lines(two[0], TENANT, "run-1") == log_of(1)
    assert await two[1].fleet_size(TENANT) == 1


async def test_processes_that_push_the_same_lines_count_them_once(
    two: tuple[Store, Store],
) -> None:
    logs = {f"run-{number}": log_of(number) for number in range(RUNS)}

    async def push_all(store: Store, seed: int) -> None:
        sent = dict.fromkeys(logs, 0)
        random = Random(seed)
        while unsent := [run_id for run_id in logs if sent[run_id] < len(logs[run_id])]:
            chosen = random.sample(unsent, min(len(unsent), 4))
            for run_id in chosen:
                sent[run_id] += 1
            lines = [line for run_id in chosen for line in logs[run_id][: sent[run_id]]]
            await push(store, TENANT, lines)

    await asyncio.gather(*(push_all(store, seed) for seed, store in enumerate((*two, *two))))

    for run_id, lines in logs.items():
        assert await held_lines(two[0], TENANT, run_id) == lines
    for window in WINDOWS:
        assert await aggregate(two[0], TENANT, window) == expected_aggregate(logs, window, NOON)
        assert await checkpoints(two[1], TENANT, window) == expected_checkpoints(logs, window, NOON)
    assert await two[0].fleet_size(TENANT) == RUNS


async def test_moving_windows_and_hiding_runs_concurrently_keeps_the_counts_correct(
    two: tuple[Store, Store],
) -> None:
    logs = {f"run-{number}": log_of(number) for number in range(RUNS)}
    await push(two[0], TENANT, log_of(0), NOON - 10 * DAY)
    now = NOON + 20 * HOUR

    async def settle() -> None:
        for step in range(0, 20, 4):
            await two[1].fleet_advance_spans(window_starts(NOON + step * HOUR))

    async def push_all() -> None:
        for lines in logs.values():
            await push(two[0], TENANT, lines, now)

    async def hide() -> None:
        await two[1].fleet_hide([(TENANT, "run-0")], NOON)

    await asyncio.gather(push_all(), settle(), hide())
    await two[1].fleet_advance_spans(window_starts(now))

    left = {run_id: lines for run_id, lines in logs.items() if run_id != "run-0"}
    for window in WINDOWS:
        assert await aggregate(two[0], TENANT, window, now) == expected_aggregate(left, window, now)
        assert await checkpoints(two[0], TENANT, window, now) == expected_checkpoints(
            left, window, now
        )
