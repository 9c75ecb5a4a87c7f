"""No statement may scan a whole table: its cost must not depend on the amount of stored data."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from itertools import count, product
from typing import Any, TypeAlias

import psycopg
import pytest

import wopr.store.postgres
import wopr.store.tables
from tests.support.feedback_rows import window
from tests.support.postgres.databases import Databases
from tests.support.rows import T0, TENANT
from wopr.store.port import RunFilter, SuspensionFilter
from wopr.store.tables.dialect import POSTGRES, Variants
from wopr.store.tables.feedback.counts import feedback_statement, signal_statement
from wopr.store.tables.runs.listing import listing
from wopr.store.tables.runs.suspensions import pending_listing

Plan: TypeAlias = dict[str, Any]

# Functions that cross tenants.
HOST_FUNCTIONS = (
    "host_audit_append",
    "host_audit_entries",
    "host_audit_head",
    "host_audit_last",
    "host_counts",
    "host_due",
    "host_due_of_each",
    "host_expirable",
    "host_expired_memories",
    "host_fleet_aged",
    "host_fleet_behind",
    "host_fleet_hidden",
    "host_due_traces",
    "host_forget_answers",
    "host_forget_invocations",
    "host_held",
    "host_judges",
    "host_key",
    "host_keys",
    "host_next_due",
    "host_projected",
    "host_totals",
    "host_undelivered",
    "host_unfinished",
    "host_unprojected",
    "host_update_key",
    "host_webhooks",
)
# Functions that read one tenant's rows.
TENANT_FUNCTIONS = (
    "tenant_answer",
    "tenant_events",
    "tenant_logs",
    "tenant_newest_workflow",
    "tenant_run",
    "tenant_workflow",
)
FUNCTION_BODY = "SELECT prosrc FROM pg_proc WHERE oid = %s::regproc"
VERBS = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")
# Totals for the operator's command line.
WALKS_ALL_ON_PURPOSE = {
    "host_totals",
    "host_keys",
    # As many rows as processes or waiting wake-ups.
    "postgres.peers._LEASES",
    "postgres.peers._PROCESSES",
    "postgres.peers._QUEUE_FACTS",
    # As many rows as keys.
    "tables.encryption_keys.KEY_IDS",
}
# For metrics, at every scrape: indexes that contain only open or active rows.
WALKS_WHAT_IS_OPEN = {"host_counts": "runs_unfinished", "host_held": "runs_held"}
# Only the rows of one request, or of a page, are sorted.
SORTS_A_FEW = {
    "tables.definitions._NEWEST_WORKFLOWS",
    "tables.definitions._NEWEST_AGENTS",
    "postgres.runs._EVENTS_OF_SIZE",
    # One row of each agent or checkpoint of a tenant is sorted, and one page of them leaves the
    # database.
    "tables.fleet.totals._BY_RUNS",
    "tables.fleet.totals._BY_FAILURES",
    "tables.fleet.totals._CHECKPOINTS",
}
# Statements about the database itself, and migrations, which run once.
OF_THE_CATALOGUE = re.compile(r"postgres\.((tokens|migrations)\..*|store\._SETTINGS)")
# The planner may use only the order of the tables, so a needed scan or sort is visible.
ORDERS = """
SET search_path = wopr;
SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off;
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_hashagg = off
"""
OPEN_RUNS = 40
MANY_RUNS = f"""
INSERT INTO runs (
    run_id, tenant, workflow_id, workflow_version, status, created_at, updated_at, last_sequence,
    ended_at
)
SELECT 'run-' || n, 'acme', 'w', '1', CASE WHEN n <= {OPEN_RUNS} THEN 'running' ELSE 'completed' END,
    n, n, 3, CASE WHEN n > {OPEN_RUNS} THEN n END
FROM generate_series(1, 20000) n
"""


def numbered(sql: str) -> str:
    """Return a statement with numbered placeholders instead of the driver's."""
    numbers = count(1)
    return re.sub(r"%[sb]|[?]", lambda _: f"${next(numbers)}", sql)


def statements() -> dict[str, str]:
    """Return every statement of the adapter by module and name."""
    found: dict[str, str] = {}
    for module in (
        *pkgutil.walk_packages(wopr.store.postgres.__path__, "wopr.store.postgres."),
        *pkgutil.walk_packages(wopr.store.tables.__path__, "wopr.store.tables."),
    ):
        short = module.name.removeprefix("wopr.store.")
        for name, value in vars(importlib.import_module(module.name)).items():
            texts = value if isinstance(value, tuple) else (value,)
            for n, each in enumerate(texts):
                text = each.postgres if isinstance(each, Variants) else each
                if isinstance(text, str) and text.split()[:1] and text.split()[0] in VERBS:
                    found[f"{short}.{name}{f'[{n}]' if n else ''}"] = numbered(text)
    return {k: v for k, v in found.items() if not OF_THE_CATALOGUE.fullmatch(k)}


@pytest.fixture(scope="module")
def database(databases: Databases) -> Iterator[psycopg.Connection[Any]]:
    with databases.new() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ORDERS)
        yield connection


def statement(database: psycopg.Connection[Any], name: str) -> str:
    """Return a statement of the adapter, or of a function, by name."""
    if "." in name:
        return statements()[name]
    [(body,)] = database.execute(FUNCTION_BODY, (name,)).fetchall()
    query = body.partition("RETURN QUERY")[2].partition(";")[0]
    # A host function checks its token first; the audit log's also takes a lock.
    return str(query or body.rpartition(";")[2])


def steps(
    database: psycopg.Connection[Any], sql: str, *, crosses: bool = False
) -> list[tuple[Plan, Plan | None]]:
    """Return every step of a statement's plan with its parent step.

    Row-level security applies, unless the statement crosses tenants.
    """
    database.execute("RESET ROLE" if crosses else "SET ROLE wopr_service")
    explained = database.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode()).fetchone()
    assert explained is not None
    return list(_walk(explained[0][0]["Plan"], None))


def steps_on_many_runs(
    databases: Databases, explain: str, *changes: str
) -> list[tuple[Plan, Plan | None]]:
    """Return every step of a plan made with statistics of many runs, after these changes."""
    with databases.new() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = wopr")
        for statement in (MANY_RUNS, *changes, "ANALYZE runs"):
            connection.execute(statement.encode())
        [(found,)] = connection.execute(explain.encode()).fetchall()
    return list(_walk(found[0]["Plan"], None))


def _walk(step: Plan, above: Plan | None) -> Iterator[tuple[Plan, Plan | None]]:
    yield step, above
    for below in step.get("Plans", ()):
        yield from _walk(below, step)


def walks(found: list[tuple[Plan, Plan | None]]) -> list[str]:
    """Return the steps that read a whole table.

    A step that reads an index without a condition stops at its LIMIT.
    """
    return [
        f"{step['Node Type']} on {step.get('Relation Name')}"
        for step, above in found
        if step["Node Type"] == "Seq Scan"
        or (
            step["Node Type"] in ("Index Scan", "Index Only Scan")
            and "Index Cond" not in step
            and (above is None or above["Node Type"] != "Limit")
        )
    ]


def sorts(found: list[tuple[Plan, Plan | None]]) -> list[str]:
    return [step["Node Type"] for step, _ in found if step["Node Type"] == "Sort"]


@pytest.mark.parametrize(
    "name",
    sorted(
        {*statements(), *HOST_FUNCTIONS, *TENANT_FUNCTIONS}
        - WALKS_ALL_ON_PURPOSE
        - WALKS_WHAT_IS_OPEN.keys()
    ),
)
def test_no_statement_scans_a_whole_table(database: psycopg.Connection[Any], name: str) -> None:
    found = steps(database, statement(database, name), crosses=name in HOST_FUNCTIONS)

    assert found
    assert walks(found) == []
    assert name in SORTS_A_FEW or sorts(found) == []


@pytest.mark.parametrize(("name", "index"), WALKS_WHAT_IS_OPEN.items())
def test_open_runs_are_counted_by_their_own_index(
    database: psycopg.Connection[Any], name: str, index: str
) -> None:
    found = steps(database, statement(database, name), crosses=True)

    assert [s["Index Name"] for s, _ in found if "Relation Name" in s] == [index]


def test_with_statistics_open_runs_are_counted_without_the_ended_ones(
    databases: Databases, database: psycopg.Connection[Any]
) -> None:
    counts = statement(database, "host_counts")

    found = steps_on_many_runs(databases, f"EXPLAIN (ANALYZE, FORMAT JSON) {counts}")

    [read] = [step for step, _ in found if "Relation Name" in step]
    assert read["Index Name"] == "runs_unfinished"
    assert read["Actual Rows"] == OPEN_RUNS
    assert read.get("Rows Removed by Filter", 0) == 0


def test_the_intentional_table_scans_are_listed() -> None:
    assert {*statements(), *HOST_FUNCTIONS} >= WALKS_ALL_ON_PURPOSE
    assert len(statements()) > 60


@pytest.mark.parametrize("statuses", [(), ("running",), ("running", "paused", "failed")])
def test_no_listing_scans_or_sorts_a_table(
    database: psycopg.Connection[Any], statuses: tuple[str, ...]
) -> None:
    for workflow_id, tag, parent, source, after in product(
        (None, "w"), (None, "t"), (None, "p"), (None, "s"), (None, (T0, "run-1"))
    ):
        where = RunFilter(
            statuses=statuses,
            workflow_id=workflow_id,
            tag=tag,
            parent_run_id=parent,
            source_run_id=source,
            created_from=T0,
        )

        found = steps(database, numbered(listing(POSTGRES, TENANT, where, after, 20)[0]))

        assert walks(found) == [], where
        assert sorts(found) == [], where


FEEDBACK_FILTERS = (
    {"flagged": True},
    {"rated": False},
    {"corrected": False, "flagged": True},
    {"label": "tone"},
    {"label": "tone", "rated": False},
)


@pytest.mark.parametrize("feedback", FEEDBACK_FILTERS, ids=str)
def test_no_listing_by_feedback_scans_or_sorts_a_table(
    database: psycopg.Connection[Any], feedback: dict[str, Any]
) -> None:
    for statuses, workflow_id, tag, after in product(
        ((), ("completed", "failed")), (None, "w"), (None, "t"), (None, (T0, "run-1"))
    ):
        where = RunFilter(statuses=statuses, workflow_id=workflow_id, tag=tag, **feedback)

        found = steps(database, numbered(listing(POSTGRES, TENANT, where, after, 20)[0]))

        assert walks(found) == [], where
        assert sorts(found) == [], where


@pytest.mark.parametrize("kinds", [(), ("approval",), ("approval", "low-confidence")])
def test_no_listing_of_suspensions_scans_or_sorts_a_table(
    database: psycopg.Connection[Any], kinds: tuple[str, ...]
) -> None:
    for workflow_id, run_id, after in product((None, "w"), (None, "r"), (None, (T0, "r/i"))):
        where = SuspensionFilter(kinds=kinds, workflow_id=workflow_id, run_id=run_id)

        found = steps(database, numbered(pending_listing(POSTGRES, TENANT, where, after, 20)[0]))

        assert walks(found) == [], where
        assert sorts(found) == [], where


def test_no_summary_scans_a_table(database: psycopg.Connection[Any]) -> None:
    for by in ("workflow", "agent", "node", "time", "nothing"):
        sql, _ = feedback_statement(TENANT, window(workflow_id="w"), by)

        assert walks(steps(database, numbered(sql))) == []
        if by != "node":
            sql, _ = signal_statement(TENANT, window(workflow_id="w"), by)
            assert walks(steps(database, numbered(sql))) == []


def test_with_statistics_due_runs_are_updated_by_their_ids(
    databases: Databases, database: psycopg.Connection[Any]
) -> None:
    take_due = statement(database, "host_take_due")

    found = steps_on_many_runs(
        databases,
        f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {take_due}",
        "UPDATE runs SET ended_at = NULL, wake_at = created_at",
    )

    changed = [
        step["Node Type"]
        for step, above in found
        if above is not None and above["Node Type"] == "ModifyTable"
        if step.get("Relation Name") == "runs"
    ]
    assert changed
    assert "Seq Scan" not in changed
