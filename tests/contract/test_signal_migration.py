"""Databases from before runs had signals: what was said in them is found and counted after."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.contract.builders import T0, TENANT
from tests.contract.feedback import window
from tests.postgres.databases import Databases
from wopr.store.open import open_store
from wopr.store.port import RunFilter, Store
from wopr.store.port.feedback import SignalCount
from wopr.store.postgres import schema as postgres
from wopr.store.postgres.schema_signals import SIGNALS as POSTGRES_SIGNALS
from wopr.store.sqlite import schema as sqlite
from wopr.store.sqlite.schema_feedback import SIGNALS as SQLITE_SIGNALS

pytestmark = pytest.mark.anyio

BODY = '{{"actor":{{"principalRef":"{by}"}},"signal":{{"kind":"{kind}","label":"{label}"}}}}'
# (run, kind, rating, who)
SAID = (
    ("run-1", "flag", None, "key-1"),
    ("run-1", "rating", 4, "key-1"),
    ("run-2", "correction", None, "key-1"),
    ("run-2", "label", None, "key-1"),
    ("kahn-1", "flag", None, "kahn:r-1"),
    ("kahn-1", "label", None, "kahn:r-1"),
)


def old_rows(tenant_of_event: bool) -> list[tuple[str, tuple[object, ...]]]:
    """Statements that fill a database of the schema before, and their values."""
    rows: list[tuple[str, tuple[object, ...]]] = []
    for run_id in ("run-1", "run-2", "run-3", "kahn-1"):
        values = (run_id, TENANT, "greet", "1", "completed", T0, T0, 0, T0 + 1, run_id == "run-3")
        columns = "run_id, tenant, workflow_id, workflow_version, status, created_at, updated_at, "
        columns += "last_sequence, ended_at, has_suspended"
        rows.append((f"INSERT INTO runs ({columns}) VALUES ({'?, ' * 9}?)", values))
    event = ("run-3", 0, "interrupt.resolved", b"{}")
    if tenant_of_event:
        names = "run_id, sequence, type, body, tenant"
        rows.append((f"INSERT INTO events ({names}) VALUES (?, ?, ?, ?, ?)", (*event, TENANT)))
    else:
        rows.append(
            ("INSERT INTO events (run_id, sequence, type, body) VALUES (?, ?, ?, ?)", event)
        )
    for place, (run_id, kind, rating, by) in enumerate(SAID):
        body = BODY.format(by=by, kind=kind, label="tone").encode()
        said = (TENANT, run_id, T0, f"ann-{place}", "greet", "", "", kind, rating, body)
        rows.append((f"INSERT INTO annotations VALUES ({'?, ' * 9}?)", said))
    return rows


async def check(store: Store) -> None:
    """What must be found after the migration."""

    async def ids(where: RunFilter) -> list[str]:
        return [row.run_id for row in (await store.runs(TENANT, where, None, 10)).runs]

    assert await ids(RunFilter(flagged=True)) == ["run-1"]
    assert await ids(RunFilter(rated=True)) == ["run-1"]
    assert await ids(RunFilter(corrected=True)) == ["run-2"]
    assert await ids(RunFilter(label="tone")) == ["run-2"]
    assert await store.signal_counts(TENANT, window(), "nothing") == [
        SignalCount(runs=4, flagged=1, corrected=1, intervened=2)
    ]
    [count] = await store.feedback(TENANT, window(), "nothing")
    assert (count.flags, count.labels, count.ratings, count.rating_sum) == (1, 1, 1, 4)
    said = await store.run_feedback(TENANT, ["run-1", "run-2", "run-3", "kahn-1"])
    assert {run_id: each.size for run_id, each in said.items()} == {"run-1": 2, "run-2": 2}
    sources = [row.source for row in await store.annotations(TENANT, "kahn-1", None, 10)]
    assert sources == ["audit", "audit"]


async def test_a_sqlite_file_from_before(tmp_path: Path) -> None:
    file = tmp_path / "wopr.db"
    connection = sqlite3.connect(file)
    before = sqlite.MIGRATIONS.index(SQLITE_SIGNALS)
    for statements in sqlite.MIGRATIONS[:before]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {before}")
    for statement, values in old_rows(tenant_of_event=False):
        connection.execute(statement, values)
    connection.commit()
    connection.close()

    store = await open_store(f"sqlite:///{file}")

    await check(store)
    await store.close()


async def test_a_postgresql_database_from_before(databases: Databases) -> None:
    [before] = [
        place
        for place, migration in enumerate(postgres.MIGRATIONS)
        if migration.statements is POSTGRES_SIGNALS
    ]
    with databases.new(is_empty=True) as url:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await postgres.migrate(connection, postgres.MIGRATIONS[:before])
            for statement, values in old_rows(tenant_of_event=True):
                await connection.execute(statement.replace("?", "%s").encode(), values)

        store = await open_store(url)

        await check(store)
        await store.close()
