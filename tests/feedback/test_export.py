from __future__ import annotations

import importlib
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feedback_rows import annotation, rated
from tests.support.rows import T0, TENANT, ended
from wopr.feedback.export import COLUMNS, Exports
from wopr.feedback.snapshots import RunSnapshots
from wopr.protocol.errors import NotProvided
from wopr.protocol.resources.reviews import ExportFormat
from wopr.store.open import open_store
from wopr.store.port import RunFilter, RunRow, Store

pytestmark = pytest.mark.anyio

RUNS = 3000
SNAPSHOT = b'{"runId":"x","inputs":{"text":"%b"},"outputs":{}}' % (b"words and " * 1000)
FORMATS: list[ExportFormat] = ["jsonl", "csv"]
MEGABYTE = 1024 * 1024


class StoredSnapshots(RunSnapshots):
    """Snapshots of runs that have no log here."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def read_whole(self, tenant: str, run: RunRow) -> bytes:
        row = await self.store.run(tenant, run.run_id)
        return b"{}" if row is None else row.snapshot or b"{}"


def exports_of(store: Store) -> Exports:
    return Exports(store, StoredSnapshots(store))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    yield opened
    await opened.close()


async def filled(store: Store, count: int, body: bytes) -> None:
    for first in range(0, count, 250):
        batches = [
            ended(f"run-{n:05}", first=0, at=T0 + n, created_at=T0 + n)
            for n in range(first, min(first + 250, count))
        ]
        with_bodies = [
            type(b)(run=_with_snapshot(b.run, body), first=0, events=b.events) for b in batches
        ]
        await store.append(TENANT, with_bodies)


def _with_snapshot(run: RunRow, body: bytes) -> RunRow:
    fields = {name: getattr(run, name) for name in RunRow.__dataclass_fields__}
    return RunRow(**{**fields, "snapshot": body})


@pytest.mark.parametrize("format_name", FORMATS)
async def test_an_export_uses_the_same_memory_for_any_number_of_runs(
    store: Store, format_name: ExportFormat
) -> None:
    await filled(store, RUNS, SNAPSHOT)
    await store.put_annotation(TENANT, rated("a", 4, run_id="run-00007"))
    exports = exports_of(store)
    size = lines = 0

    tracemalloc.start()
    try:
        async for chunk in exports.chunks(TENANT, RunFilter(), format_name):
            size += len(chunk)
            lines += chunk.count(b"\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert lines == RUNS + (format_name == "csv")
    assert size > RUNS * len(SNAPSHOT) * 0.9
    assert peak < 4 * MEGABYTE < size / 5


async def test_a_run_with_more_annotations_than_a_page_is_exported_completely(store: Store) -> None:
    await store.append(TENANT, [ended("run-1", first=0)])
    for n in range(450):
        await store.put_annotation(TENANT, annotation(f"ann-{n:03}"))

    chunks = [c async for c in exports_of(store).chunks(TENANT, RunFilter(), "jsonl")]

    line = b"".join(chunks)
    assert line.count(b'"id"') == 450
    assert line.startswith(b'{"run":{},"annotations":[{"id":"ann-000"},{"id":"ann-001"}')
    assert line.endswith(b'{"id":"ann-449"}]}\n')


async def test_parquet_without_its_extra_is_refused_before_the_first_byte(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(NotProvided, match="wopr\\[parquet\\]"):
        exports_of(store).chunks(TENANT, RunFilter(), "parquet")


async def test_a_parquet_file_contains_the_flat_rows(store: Store, tmp_path: Path) -> None:
    await filled(store, 1200, b'{"outputs":{"text":"hi"},"agent":{"agentId":"core.a.b"}}')
    await store.put_annotation(TENANT, rated("a", 4, run_id="run-01199"))
    file = tmp_path / "runs.parquet"

    with file.open("wb") as out:
        async for chunk in exports_of(store).chunks(TENANT, RunFilter(), "parquet"):
            out.write(chunk)

    # It has no types of its own.
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows = parquet.read_table(file).to_pylist()
    assert parquet.ParquetFile(file).num_row_groups == 3
    assert (len(rows), list(rows[0])) == (1200, list(COLUMNS))
    assert rows[0]["run_id"] == "run-01199"
    assert (rows[0]["ratings"], rows[0]["mean_rating"], rows[1]["mean_rating"]) == (1, 4.0, None)
    assert (rows[0]["outputs"], rows[0]["agent_id"]) == ('{"text":"hi"}', "core.a.b")
