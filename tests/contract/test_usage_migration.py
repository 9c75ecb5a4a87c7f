"""Databases from before definitions and annotations were counted: the migration counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.old_schemas import fill_old_postgres, fill_old_sqlite
from tests.support.postgres.databases import Databases
from tests.support.rows import T0, TENANT, workflow
from wopr.store.open import open_store
from wopr.store.port import Store

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
    """Check what the migration must count, and that counting continues."""
    found = await store.usage(TENANT, T0)
    assert (found.other_bytes, found.workflow_versions, found.agents) == (12, 2, 0)

    await store.put_workflow(TENANT, workflow(version="3", body=b"1"))

    found = await store.usage(TENANT, T0)
    assert (found.other_bytes, found.workflow_versions) == (13, 3)


async def test_an_old_sqlite_file_is_migrated(tmp_path: Path) -> None:
    store = await open_store(fill_old_sqlite(tmp_path / "wopr.db", "other_usage", ROWS))

    await check(store)
    await store.close()


async def test_an_old_postgresql_database_is_migrated(databases: Databases) -> None:
    with databases.new(is_empty=True) as url:
        await fill_old_postgres(url, "other_usage", ROWS)

        store = await open_store(url)

        await check(store)
        await store.close()
