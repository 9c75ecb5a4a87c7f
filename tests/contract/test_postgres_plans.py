"""No statement may walk a whole table: what it costs must not depend on how much is stored."""

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
import wopr.store.sql
from tests.contract.builders import T0, TENANT
from tests.contract.feedback import window
from tests.postgres.databases import Databases
from wopr.store.port import RunFilter, SuspensionFilter
from wopr.store.postgres.schema_counts import OPEN_COUNTS
from wopr.store.postgres.schema_fleet import FLEET_FUNCTIONS, FLEET_PUSHES_FUNCTIONS
from wopr.store.postgres.schema_host import HOST_FUNCTIONS, HostFunction
from wopr.store.postgres.schema_peers import PEER_FUNCTIONS
from wopr.store.postgres.schema_reads import TENANT_READS
from wopr.store.postgres.schema_timers import DUE_OF_EACH, TAKE_DUE
from wopr.store.postgres.schema_traces import TRACES_FUNCTIONS
from wopr.store.sql.counting import counting
from wopr.store.sql.dialect import POSTGRES
from wopr.store.sql.inbox import pending_listing
from wopr.store.sql.listing import listing
from wopr.store.sql.signals import counting_signals

Plan: TypeAlias = dict[str, Any]

_HELD: tuple[HostFunction, ...] = tuple(
    function for function in PEER_FUNCTIONS if function.name == "host_held"
)
DROPPED = "host_fleet_begun"
# In the order of the migrations: a function that was given another body is explained by that.
_HOST: tuple[HostFunction, ...] = (
    *HOST_FUNCTIONS,
    *_HELD,
    *(each for each in FLEET_FUNCTIONS if each.name != DROPPED),
    *FLEET_PUSHES_FUNCTIONS,
    *TRACES_FUNCTIONS,
    OPEN_COUNTS,
    DUE_OF_EACH,
)
VERBS = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")
# Totals for the operator's command line.
WALKS_ALL_ON_PURPOSE = {
    "host_totals",
    "host_keys",
    # As many rows as there are processes, and as there are wake-ups that wait.
    "peers._LEASES",
    "peers._PROCESSES",
    "peers._QUEUE_FACTS",
    # As many rows as there are keys.
    "store._ENCRYPTION_KEYS",
}
# For metrics, at every scrape: indexes that hold what is open, or at work, and nothing else.
WALKS_WHAT_IS_OPEN = {"host_counts": "runs_unfinished", "host_held": "runs_held"}
# What is sorted is one request's, or a page that is cut already.
SORTS_A_FEW = {
    "queues._ADD_ITEMS",
    "agents._NEWEST_OF_EACH",
    "workflows._NEWEST_OF_EACH",
    "runs._EVENTS_OF_SIZE",
    # One row of each agent or checkpoint of a tenant is sorted, and a page of them leaves the
    # database.
    "fleet_totals._BY_RUNS",
    "fleet_totals._BY_FAILURES",
    "fleet_totals._CHECKPOINTS",
}
# About the database itself, not about what is stored in it; and migrations, which run once.
OF_THE_CATALOGUE = re.compile(r"(roles|tokens)\..*|schema(_\w+)?\..*|store\._SETTINGS")
# Only what the tables' own order gives: whatever needs a walk or a sort shows it.
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
    """A statement with numbers in place of the driver's marks."""
    numbers = count(1)
    return re.sub(r"%[sb]|[?]", lambda _: f"${next(numbers)}", sql)


def statements() -> dict[str, str]:
    """Every statement of the adapter, by module and name, and every body of its functions."""
    found: dict[str, str] = {}
    for module in (
        *pkgutil.iter_modules(wopr.store.postgres.__path__, "wopr.store.postgres."),
        *pkgutil.iter_modules(wopr.store.sql.__path__, "wopr.store.sql."),
    ):
        short = module.name.rsplit(".")[-1]
        for name, value in vars(importlib.import_module(module.name)).items():
            texts = value if isinstance(value, tuple) else (value,)
            for n, text in enumerate(texts):
                if isinstance(text, str) and text.split()[:1] and text.split()[0] in VERBS:
                    found[f"{short}.{name}{f'[{n}]' if n else ''}"] = numbered(text)
    # A function that takes a lock first is explained by what it reads after.
    found |= {function.name: function.body.rsplit(";")[-1] for function in _HOST}
    found |= {function.name: function.body.rsplit(";")[-1] for function in TENANT_READS}
    return {k: v for k, v in found.items() if not OF_THE_CATALOGUE.fullmatch(k)}


@pytest.fixture(scope="module")
def database(databases: Databases) -> Iterator[psycopg.Connection[Any]]:
    with databases.new() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ORDERS)
        yield connection


def steps(database: psycopg.Connection[Any], sql: str) -> list[tuple[Plan, Plan | None]]:
    """Every step of a statement's plan, with the one that it belongs to."""
    # As the service, with its row-level security; the host's functions have rows of all tenants.
    is_host = any(sql == function.body.rsplit(";")[-1] for function in _HOST)
    database.execute("RESET ROLE" if is_host else "SET ROLE wopr_service")
    explained = database.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode()).fetchone()
    assert explained is not None
    return list(_walk(explained[0][0]["Plan"], None))


def steps_on_many_runs(
    databases: Databases, explain: str, *changes: str
) -> list[tuple[Plan, Plan | None]]:
    """Every step of a plan that is made with statistics of many runs, after these changes."""
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
    """The steps that read a table from end to end.

    One that reads an index without a condition stops where its LIMIT says.
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
    "name", sorted(statements().keys() - WALKS_ALL_ON_PURPOSE - WALKS_WHAT_IS_OPEN.keys())
)
def test_a_statement_walks_no_table(database: psycopg.Connection[Any], name: str) -> None:
    found = steps(database, statements()[name])

    assert found
    assert walks(found) == []
    assert name in SORTS_A_FEW or sorts(found) == []


@pytest.mark.parametrize(("name", "index"), WALKS_WHAT_IS_OPEN.items())
def test_what_is_open_is_counted_by_an_index_of_its_own(
    database: psycopg.Connection[Any], name: str, index: str
) -> None:
    found = steps(database, statements()[name])

    assert [s["Index Name"] for s, _ in found if "Relation Name" in s] == [index]


def test_a_planner_that_knows_the_table_counts_open_runs_without_those_that_ended(
    databases: Databases,
) -> None:
    found = steps_on_many_runs(databases, f"EXPLAIN (ANALYZE, FORMAT JSON) {OPEN_COUNTS.body}")

    [read] = [step for step, _ in found if "Relation Name" in step]
    assert read["Index Name"] == "runs_unfinished"
    assert read["Actual Rows"] == OPEN_RUNS
    assert read.get("Rows Removed by Filter", 0) == 0


def test_the_statements_that_walk_on_purpose_are_known() -> None:
    assert statements().keys() >= WALKS_ALL_ON_PURPOSE
    assert len(statements()) > 80


@pytest.mark.parametrize("statuses", [(), ("running",), ("running", "paused", "failed")])
def test_no_listing_walks_or_sorts_a_table(
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
def test_no_listing_by_feedback_walks_or_sorts_a_table(
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
def test_no_listing_of_suspensions_walks_or_sorts_a_table(
    database: psycopg.Connection[Any], kinds: tuple[str, ...]
) -> None:
    for workflow_id, run_id, after in product((None, "w"), (None, "r"), (None, (T0, "r/i"))):
        where = SuspensionFilter(kinds=kinds, workflow_id=workflow_id, run_id=run_id)

        found = steps(database, numbered(pending_listing(POSTGRES, TENANT, where, after, 20)[0]))

        assert walks(found) == [], where
        assert sorts(found) == [], where


def test_no_summary_walks_a_table(database: psycopg.Connection[Any]) -> None:
    for by in ("workflow", "agent", "node", "time", "nothing"):
        sql, _ = counting(POSTGRES, TENANT, window(workflow_id="w"), by)

        assert walks(steps(database, numbered(sql))) == []
        if by != "node":
            sql, _ = counting_signals(POSTGRES, TENANT, window(workflow_id="w"), by)
            assert walks(steps(database, numbered(sql))) == []


def test_a_planner_that_knows_the_table_changes_due_runs_by_their_ids(
    databases: Databases,
) -> None:
    found = steps_on_many_runs(
        databases,
        f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {TAKE_DUE.body}",
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
