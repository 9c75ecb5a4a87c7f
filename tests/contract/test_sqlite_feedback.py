"""The cost of a summary depends on its window and not on the amount of feedback."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.support.feedback_rows import (
    DAY,
    HOUR,
    MIDNIGHT,
    annotation,
    judge,
    pending,
    queue,
    window,
)
from tests.support.rows import T0, TENANT, ended
from wopr.store.port.feedback import GroupBy
from wopr.store.sqlite import SqliteStore
from wopr.store.sqlite.connections import open_writer
from wopr.store.tables.feedback.counts import feedback_statement, periods, signal_statement

GROUPINGS: tuple[GroupBy, ...] = ("workflow", "agent", "node", "time", "nothing")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = open_writer(Path(tmp_path_factory.mktemp("plans")) / "wopr.db")
    yield connection
    connection.close()


@pytest.mark.parametrize("by", GROUPINGS)
def test_a_summary_searches_its_window_by_the_primary_key(
    database: sqlite3.Connection, by: GroupBy
) -> None:
    for days, narrowed in product((1, 30), ({}, {"workflow_id": "w", "agent_id": "a"})):
        where = window(T0 - T0 % HOUR, T0 - T0 % HOUR + days * DAY, **narrowed)
        sql, parameters = feedback_statement(TENANT, where, by)

        steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]

        if by != "node":
            sql, parameters = signal_statement(TENANT, where, by)
            rows = database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
            steps += [row[3] for row in rows]

        reads = [step for step in steps if "feedback_" in step or "run_" in step]
        assert reads
        assert all(
            step.startswith("SEARCH") and "tenant=? AND bucket>? AND bucket<?" in step
            for step in reads
        )


def test_a_long_window_reads_whole_days_from_the_daily_counts() -> None:
    where = window(MIDNIGHT + 5 * HOUR, MIDNIGHT + 30 * DAY + HOUR)

    parts = periods(where, "workflow")

    assert [(unit, (until - since) // HOUR) for unit, since, until in parts] == [
        ("hours", 19),
        ("days", 29 * 24),
        ("hours", 1),
    ]


@pytest.mark.anyio
async def test_expiry_leaves_no_feedback_rows(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "wopr.db"))
    await store.append(TENANT, [ended("old", first=0, at=T0)])
    await store.put_annotation(TENANT, annotation(run_id="old"))
    await store.put_queue(TENANT, queue(), ["old"])
    await store.lock_queue_item(TENANT, "q-1", "ann", now=T0, until=T0 + 1)
    await store.put_judge(TENANT, judge(), pending("old"))

    await store.delete_expired_runs(T0 + 1, 10)
    await store.close()

    plain = sqlite3.connect(tmp_path / "wopr.db")
    for table in (
        *("annotations", "feedback_hours", "feedback_days", "run_feedback", "run_labels"),
        *("run_agents", "run_hours", "run_days"),
        *("queue_items", "queue_reviews", "judged_runs"),
    ):
        assert plain.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    plain.close()
