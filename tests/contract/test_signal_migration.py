"""Databases from before runs had signals: the migration finds and counts existing feedback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.old_schemas import fill_old_postgres, fill_old_sqlite
from tests.support.feedback_rows import window
from tests.support.postgres.databases import Databases
from tests.support.rows import T0, TENANT
from wopr.store.open import open_store
from wopr.store.port import RunFilter, Store
from wopr.store.port.feedback import SignalCount

pytestmark = pytest.mark.anyio

BODY = '{{"actor":{{"principalRef":"{by}"}},"signal":{{"kind":"{kind}","label":"{label}"}}}}'
# (run, kind, rating, author)
SAID = (
    ("run-1", "flag", None, "key-1"),
    ("run-1", "rating", 4, "key-1"),
    ("run-2", "correction", None, "key-1"),
    ("run-2", "label", None, "key-1"),
    ("kahn-1", "flag", None, "kahn:r-1"),
    ("kahn-1", "label", None, "kahn:r-1"),
)


def old_rows(tenant_of_event: bool) -> list[tuple[str, tuple[object, ...]]]:
    """Return statements and values that fill a database of the schema before."""
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
    """Check the result of the migration."""

    async def ids(where: RunFilter) -> list[str]:
        return [row.run_id for row in (await store.runs(TENANT, where, None, 10)).runs]

    assert await ids(RunFilter(flagged=True)) == ["run-1"]
    assert await ids(RunFilter(rated=True)) == ["run-1"]
    assert await ids(RunFilter(corrected=True)) == ["run-2"]
    assert await ids(RunFilter(label="tone")) == ["run-2"]
    assert await store.signal_counts(TENANT, window(), "nothing") == [
        SignalCount(runs=4, flagged=1, corrected=1, intervened=2)
    ]
    [count] = await store.feedback_counts(TENANT, window(), "nothing")
    assert (count.flags, count.labels, count.ratings, count.rating_sum) == (1, 1, 1, 4)
    said = await store.run_feedback(TENANT, ["run-1", "run-2", "run-3", "kahn-1"])
    assert {run_id: each.size for run_id, each in said.items()} == {"run-1": 2, "run-2": 2}
    sources = [row.source for row in await store.annotations(TENANT, "kahn-1", None, 10)]
    assert sources == ["audit", "audit"]


async def test_an_old_sqlite_file_is_migrated(tmp_path: Path) -> None:
    store = await open_store(
        fill_old_sqlite(tmp_path / "wopr.db", "signals", old_rows(tenant_of_event=False))
    )

    await check(store)
    await store.close()


async def test_an_old_postgresql_database_is_migrated(databases: Databases) -> None:
    with databases.new(is_empty=True) as url:
        await fill_old_postgres(url, "signals", old_rows(tenant_of_event=True))

        store = await open_store(url)

        await check(store)
        await store.close()
