"""Databases from before definitions and annotations were counted: the migration counts them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.contract.builders import T0, TENANT, workflow
from tests.postgres.databases import Databases
from wopr.store.open import open_store
from wopr.store.port import Store
from wopr.store.postgres import schema as postgres
from wopr.store.postgres.schema_usage import OTHER_USAGE as POSTGRES_USAGE
from wopr.store.sqlite import schema as sqlite
from wopr.store.sqlite.schema_usage import OTHER_USAGE as SQLITE_USAGE

pytestmark = pytest.mark.anyio

_DEFINITION = (
    "INSERT INTO workflows (tenant, workflow_id, version, digest, body, registered_at) "
    "VALUES (?, 'greet', ?, ?, ?, ?)"
)
ROWS: tuple[tuple[str, tuple[object, ...]], ...] = (
    (_DEFINITION, (TENANT, "1", b"#", b"12345", T0)),
    (_DEFINITION, (TENANT, "2", b"#", b"123", T0)),
    ("INSERT INTO answers VALUES (?, ?, ?, 201, ?, ?)", (TENANT, b"k", b"d", b"1234", T0)),
)


async def check(store: Store) -> None:
    """What must be counted after the migration, and goes on being counted."""
    found = await store.usage(TENANT, T0)
    assert (found.other_bytes, found.workflow_versions, found.agents) == (12, 2, 0)

    await store.put_workflow(TENANT, workflow(version="3", body=b"1"))

    found = await store.usage(TENANT, T0)
    assert (found.other_bytes, found.workflow_versions) == (13, 3)


async def test_a_sqlite_file_from_before(tmp_path: Path) -> None:
    file = tmp_path / "wopr.db"
    connection = sqlite3.connect(file)
    before = sqlite.MIGRATIONS.index(SQLITE_USAGE)
    for statements in sqlite.MIGRATIONS[:before]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {before}")
    for statement, values in ROWS:
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
        if migration.statements is POSTGRES_USAGE
    ]
    with databases.new(is_empty=True) as url:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await postgres.migrate(connection, postgres.MIGRATIONS[:before])
            for statement, values in ROWS:
                await connection.execute(statement.replace("?", "%s").encode(), values)

        store = await open_store(url)

        await check(store)
        await store.close()
