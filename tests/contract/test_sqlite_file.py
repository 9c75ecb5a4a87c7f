from __future__ import annotations

import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.protocol.errors import Refused, Unavailable
from wopr.store.sqlite import SqliteStore
from wopr.store.sqlite.migrations import MIGRATIONS, Migration

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder of its own" / "wopr 100%.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(str(file))
    yield opened
    await opened.close()


async def test_only_the_owner_can_read_the_files(store: SqliteStore, file: Path) -> None:
    await store.append(TENANT, [batch()])

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}

    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


async def test_a_closed_store_is_one_file(store: SqliteStore, file: Path) -> None:
    await store.append(TENANT, [batch()])

    await store.close()

    assert list(file.parent.iterdir()) == [file]


async def test_the_facts_describe_what_is_stored_and_how(store: SqliteStore, file: Path) -> None:
    await store.append(TENANT, [batch("run-1", count=3), batch("run-2", count=2)])

    facts = await store.facts()

    assert (facts.kind, facts.location) == ("sqlite", str(file))
    assert (facts.runs, facts.events, facts.schema_version) == (2, 5, len(MIGRATIONS))
    assert facts.bytes_on_disk > 4096
    assert facts.settings["journal_mode"] == "wal"
    assert facts.settings["synchronous"] == "2"


async def test_an_expired_run_is_recorded_for_its_tenant(store: SqliteStore) -> None:
    await store.append(TENANT, [ended("old", first=0, at=T0), batch("open")])

    await store.delete_expired_runs(T0 + 1, 10)

    assert await store.is_expired(TENANT, "old")
    assert not await store.is_expired(OTHER, "old")
    assert not await store.is_expired(TENANT, "open")


async def test_expiry_leaves_no_rows(store: SqliteStore, file: Path) -> None:
    await store.append(TENANT, [ended("old", first=0, at=T0, tags=("a", "b"))])

    await store.delete_expired_runs(T0 + 1, 10)
    await store.close()

    plain = sqlite3.connect(file)
    for table in ("runs", "run_tags", "events", "artifacts"):
        assert plain.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    plain.close()


async def test_a_newer_schema_is_refused_and_not_changed(store: SqliteStore, file: Path) -> None:
    await store.close()
    plain = sqlite3.connect(file)
    plain.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    plain.close()

    known = len(MIGRATIONS)
    with pytest.raises(Refused, match=f"schema {known + 1}, .* up to {known}:") as refused:
        await SqliteStore.open(str(file))

    assert refused.value.details == {"field": "db"}
    plain = sqlite3.connect(file)
    assert plain.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    plain.close()


async def test_a_failed_migration_leaves_the_file_unchanged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (
        *MIGRATIONS,
        Migration("broken", ("CREATE TABLE more (a)", "CREATE TABLE runs (a)")),
    )
    monkeypatch.setattr("wopr.store.sqlite.migrations.MIGRATIONS", broken)

    with pytest.raises(Unavailable):
        await SqliteStore.open(str(file))

    plain = sqlite3.connect(file)
    assert plain.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert plain.execute("PRAGMA user_version").fetchone() == (0,)
    plain.close()


async def test_a_file_that_is_not_a_database_is_refused_without_its_path(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no database, only some notes\n" * 100)

    with pytest.raises(Unavailable) as refused:
        await SqliteStore.open(str(file))

    assert refused.value.message == "the store is not available: the file is not a database"


async def test_a_directory_that_cannot_be_created_is_refused_without_its_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(Unavailable) as refused:
        await SqliteStore.open(str(tmp_path / "taken" / "wopr.db"))

    assert str(tmp_path) not in refused.value.message


async def test_readers_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(Unavailable, match="read-only"):
        store._reader.read_inline("DELETE FROM runs")
