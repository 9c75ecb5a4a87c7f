from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.contract import appending
from tests.support.rows import (
    TENANT,
    answer,
    artifact,
    batch,
    ended,
    invocation,
    key,
    log,
    workflow,
)
from wopr.protocol.errors import Refused, Unavailable
from wopr.store.open import open_store
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


async def test_all_data_survives_a_restart(store: Store, store_url: str) -> None:
    await store.append(TENANT, [batch(tags=("t",), artifacts=[artifact()], idempotency=answer())])
    await store.put_workflow(TENANT, workflow())
    await store.put_key(key())
    await store.claim_invocation(TENANT, invocation())
    before = await store.run(TENANT, "run-1")
    await store.close()

    again = await open_store(store_url)

    assert await again.run(TENANT, "run-1") == before
    assert await log(again) == [b"0"]
    assert await again.artifact(TENANT, "run-1", "a-1") == artifact()
    assert await again.idempotency_record(TENANT, b"k") == answer()
    assert await again.workflow(TENANT, "greet", None) == workflow()
    assert await again.keys() == [key()]
    await again.append(TENANT, [ended()])
    await again.close()


async def test_closing_finishes_queued_writes(store: Store, store_url: str) -> None:
    async with anyio.create_task_group() as tasks:
        for n in range(600):
            tasks.start_soon(store.append, TENANT, [batch(f"run-{n:03}")])
        await anyio.lowlevel.checkpoint()
        await store.close()

    again = await open_store(store_url)
    assert await again.open_run_counts() == {"running": 600}
    await again.close()


async def test_a_closed_store_is_unavailable(store: Store) -> None:
    await store.close()

    with pytest.raises(Unavailable):
        await store.append(TENANT, [batch()])
    with pytest.raises(Unavailable):
        await store.run(TENANT, "run-1")
    with pytest.raises(Unavailable):
        await store.check_ready()


async def test_closing_twice_is_harmless(store: Store) -> None:
    await store.close()

    await store.close()


async def test_a_working_store_is_ready(store: Store) -> None:
    await store.check_ready()


async def test_a_cancelled_call_does_not_stop_the_writer(store: Store) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.append(TENANT, [batch()])

    await store.append(TENANT, [batch("run-2")])

    assert await log(store, "run-2") == [b"0"]


def killed_after(count: int, url: str) -> list[bytes]:
    """Kill a process after so many acknowledged appends, and return its output."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-m", appending.__name__, url], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(count)]
        process.kill()
        return acknowledged + process.stdout.readlines()


async def test_every_acknowledged_append_survives_a_kill(store_url: str) -> None:
    acknowledged = await anyio.to_thread.run_sync(killed_after, 200, store_url)

    store = await open_store(store_url)
    for line in acknowledged:
        run_id, sequence = line.decode().split()
        assert [e.sequence for e in await store.read(TENANT, run_id, int(sequence), 1)] == [
            int(sequence)
        ]
    for tenant, run_id in await store.unfinished_runs(None, 100):
        row = await store.run(tenant, run_id)
        assert row is not None
        assert len(await store.read(tenant, run_id, 0, 1_000_000)) == row.last_sequence + 1
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["", "wopr.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "mysql://u:hidden-word@h/d"],
)
async def test_an_invalid_store_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Refused) as refused:
        await open_store(url)

    assert refused.value.details == {"field": "db"}
    assert "sqlite:////absolute/path" in refused.value.message
    assert "hidden-word" not in refused.value.message


async def test_a_relative_path_is_resolved_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    store = await open_store("sqlite:///data/wopr.db")
    await store.close()

    assert (tmp_path / "data" / "wopr.db").is_file()
