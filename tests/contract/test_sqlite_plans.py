"""No statement may scan a whole table: its cost must not depend on the amount of stored data."""

from __future__ import annotations

import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import wopr.store.sqlite
import wopr.store.tables
from tests.support.rows import T0, TENANT
from wopr.store.port import RunFilter, SuspensionFilter
from wopr.store.sqlite.connections import open_writer
from wopr.store.tables.dialect import SQLITE, Variants
from wopr.store.tables.runs.listing import listing
from wopr.store.tables.runs.suspensions import pending_listing

# Totals for the operator's command line, and the few encryption keys. They run in a thread, and
# rarely.
WALKS_ALL_ON_PURPOSE = {
    "sqlite.store._TOTALS",
    "tables.encryption_keys.KEY_IDS",
    "tables.credentials._ALL_KEYS",
    "tables.usage._QUOTAS",
    "sqlite.maintenance._DELETE_COUNTS",
    "tables.usage._ALL_USAGE",
}
# For metrics, recounts and the start: an index that contains only open or crashed runs.
WALKS_WHAT_IS_OPEN = {
    "tables.runs.maintenance._OPEN_COUNTS",
    "tables.runs.maintenance._WAITING_FOR_CODE",
    "sqlite.maintenance._WITH_CRASHES",
    "sqlite.maintenance._QUARANTINE",
    "sqlite.maintenance._COUNT_ALL_ACTIVE",
}
# Its page is cut before it is sorted.
SORTS_ITS_PAGE = {
    "tables.definitions._NEWEST_WORKFLOWS",
    "tables.definitions._NEWEST_AGENTS",
    # One row of each agent or checkpoint of a tenant is sorted, and one page of them leaves the
    # database.
    "tables.fleet.totals._BY_RUNS",
    "tables.fleet.totals._BY_FAILURES",
    "tables.fleet.totals._CHECKPOINTS",
}


def statements() -> dict[str, str]:
    """Return every statement of the adapter by module and name."""
    found: dict[str, str] = {}
    for module in (
        *pkgutil.walk_packages(wopr.store.sqlite.__path__, "wopr.store.sqlite."),
        *pkgutil.walk_packages(wopr.store.tables.__path__, "wopr.store.tables."),
    ):
        for name, value in vars(importlib.import_module(module.name)).items():
            texts = value if isinstance(value, tuple) else (value,)
            for n, each in enumerate(texts):
                text = each.sqlite if isinstance(each, Variants) else each
                if isinstance(text, str) and text.split()[:1] in (
                    ["SELECT"],
                    ["UPDATE"],
                    ["DELETE"],
                ):
                    found[
                        f"{module.name.removeprefix('wopr.store.')}.{name}{f'[{n}]' if n else ''}"
                    ] = text
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = open_writer(Path(tmp_path_factory.mktemp("plans")) / "wopr.db")
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, sql: str) -> list[str]:
    rows = database.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))
    return [row[3] for row in rows]


def walks(steps: list[str]) -> list[str]:
    """Return the steps that read a whole table.

    Rows of a subquery are limited by its LIMIT, and those below a run by its children.
    """
    bounded = ("SCAN (subquery", "SCAN part", "SCAN known", "SCAN below", "SCAN CONSTANT ROW")
    return [step for step in steps if step.startswith("SCAN") and not step.startswith(bounded)]


def sorts(steps: list[str]) -> list[str]:
    return [step for step in steps if "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    "name", sorted(statements().keys() - WALKS_ALL_ON_PURPOSE - WALKS_WHAT_IS_OPEN)
)
def test_no_statement_scans_a_whole_table(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, statements()[name])

    assert steps
    assert not walks(steps)
    assert name in SORTS_ITS_PAGE or not sorts(steps)


def test_open_runs_are_counted_without_reading_ended_ones(
    database: sqlite3.Connection,
) -> None:
    index = "SELECT sql FROM sqlite_master WHERE name = 'runs_unfinished'"

    steps = plan(database, statements()["tables.runs.maintenance._OPEN_COUNTS"])

    assert walks(steps) == ["SCAN runs USING INDEX runs_unfinished"]
    assert database.execute(index).fetchone()[0].endswith("WHERE ended_at IS NULL")


def test_the_intentional_table_scans_are_listed() -> None:
    assert statements().keys() >= WALKS_ALL_ON_PURPOSE
    assert len(statements()) > 20


@pytest.mark.parametrize("statuses", [(), ("running",), ("running", "paused", "failed")])
def test_no_listing_scans_or_sorts_a_table(
    database: sqlite3.Connection, statuses: tuple[str, ...]
) -> None:
    for workflow_id, tag, parent, created_from, created_before, after in product(
        (None, "w"), (None, "t"), (None, "p"), (None, T0), (None, T0), (None, (T0, "run-1"))
    ):
        where = RunFilter(
            statuses=statuses,
            workflow_id=workflow_id,
            tag=tag,
            parent_run_id=parent,
            created_from=created_from,
            created_before=created_before,
        )

        steps = plan(database, listing(SQLITE, TENANT, where, after, 20)[0])

        assert not walks(steps), where
        # The merge of several statuses sorts at most a page of each.
        merges = len(statuses) > 1 and not (workflow_id or tag or parent)
        assert merges or not sorts(steps), where


FEEDBACK_FILTERS = (
    {"flagged": True},
    {"rated": False},
    {"corrected": False, "flagged": True},
    {"label": "tone"},
    {"label": "tone", "rated": False},
)


@pytest.mark.parametrize("feedback", FEEDBACK_FILTERS, ids=str)
def test_no_listing_by_feedback_scans_or_sorts_a_table(
    database: sqlite3.Connection, feedback: dict[str, Any]
) -> None:
    for statuses, workflow_id, tag, after in product(
        ((), ("completed", "failed")), (None, "w"), (None, "t"), (None, (T0, "run-1"))
    ):
        where = RunFilter(statuses=statuses, workflow_id=workflow_id, tag=tag, **feedback)

        sql, _ = listing(SQLITE, TENANT, where, after, 20)
        steps = plan(database, sql)

        assert not walks(steps), where
        # A merge of several scans sorts at most a page of each.
        assert " UNION ALL " in sql or not sorts(steps), where


@pytest.mark.parametrize("kinds", [(), ("approval",), ("approval", "low-confidence")])
def test_no_listing_of_suspensions_scans_or_sorts_a_table(
    database: sqlite3.Connection, kinds: tuple[str, ...]
) -> None:
    for workflow_id, run_id, after in product((None, "w"), (None, "r"), (None, (T0, "r/i"))):
        where = SuspensionFilter(kinds=kinds, workflow_id=workflow_id, run_id=run_id)

        steps = plan(database, pending_listing(SQLITE, TENANT, where, after, 20)[0])

        assert not walks(steps), where
        merges = len(kinds) > 1 and not (workflow_id or run_id)
        assert merges or not sorts(steps), where
