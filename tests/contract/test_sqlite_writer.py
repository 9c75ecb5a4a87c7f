from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest.mock import Mock

import anyio.to_thread
import pytest

from tests.support.rows import T0, TENANT, batch, log
from wopr.protocol.errors import SequenceTaken, Unavailable
from wopr.store.sqlite import SqliteStore
from wopr.store.sqlite.connections import open_writer
from wopr.store.sqlite.writer import GROUP_LIMIT, Writer

pytestmark = pytest.mark.anyio

DEADLINE = 60.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "wopr.db"


@pytest.fixture
def connection(file: Path) -> sqlite3.Connection:
    return open_writer(file)


@pytest.fixture
async def writer(connection: sqlite3.Connection) -> AsyncIterator[Writer]:
    writer = Writer(connection)
    yield writer
    writer.refuse()
    await anyio.to_thread.run_sync(writer.finish)
    writer.close()


class Gate:
    """Block the writer inside a job, so that jobs submitted meanwhile form one group."""

    def __init__(self, writer: Writer) -> None:
        self._entered = threading.Event()
        self._open = threading.Event()
        self.job = writer.submit(self._hold)
        assert self._entered.wait(DEADLINE)

    def _hold(self, _: sqlite3.Connection) -> bool:
        self._entered.set()
        return self._open.wait(DEADLINE)

    def open(self) -> None:
        self._open.set()


def write(name: str) -> Callable[[sqlite3.Connection], str]:
    def job(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO meta (name, value) VALUES (?, 1)", (name,))
        return name

    return job


def fail(error: Exception) -> Callable[[sqlite3.Connection], str]:
    def job(connection: sqlite3.Connection) -> str:
        raise error

    return job


def written(file: Path) -> set[str]:
    reader = sqlite3.connect(file)
    names = {row[0] for row in reader.execute("SELECT name FROM meta")}
    reader.close()
    return names


async def test_a_write_returns_its_result_after_the_commit(writer: Writer, file: Path) -> None:
    assert await writer.submit(write("a")) == "a"

    assert written(file) == {"a"}


async def test_waiting_jobs_share_one_transaction_and_one_wake_up(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(writer)
    jobs = [writer.submit(lambda c: c.execute("SELECT 1").fetchone()) for _ in range(20)]
    begun: list[str] = []
    writer.submit(lambda c: c.set_trace_callback(begun.append))
    late = [writer.submit(write(str(n))) for n in range(20)]
    loop = asyncio.get_running_loop()
    wake_up = Mock(wraps=loop.call_soon_threadsafe)
    monkeypatch.setattr(loop, "call_soon_threadsafe", wake_up)

    gate.open()
    await asyncio.gather(gate.job, *jobs, *late)

    assert begun.count("COMMIT") == 1
    # One for the job at the gate, one for the group behind it.
    assert wake_up.call_count == 2


async def test_a_group_has_a_maximum_size(writer: Writer, file: Path) -> None:
    gate = Gate(writer)
    commits: list[str] = []
    writer.submit(lambda c: c.set_trace_callback(commits.append))
    jobs = [writer.submit(write(str(n))) for n in range(GROUP_LIMIT * 2)]

    gate.open()
    await asyncio.gather(*jobs)

    assert commits.count("COMMIT") == 3
    assert len(written(file)) == GROUP_LIMIT * 2


@pytest.mark.parametrize(
    "error",
    [SequenceTaken("moved on"), ValueError("a mistake"), sqlite3.OperationalError("broken")],
    ids=["refused", "mistaken", "broken"],
)
async def test_a_failing_job_does_not_affect_the_others(
    writer: Writer, file: Path, error: Exception
) -> None:
    gate = Gate(writer)
    before = writer.submit(write("before"))
    failing = writer.submit(fail(error))
    after = writer.submit(write("after"))

    gate.open()
    results = await asyncio.gather(before, failing, after, return_exceptions=True)

    assert (results[0], results[2]) == ("before", "after")
    assert isinstance(results[1], type(error) | Unavailable)
    assert written(file) == {"before", "after"}


async def test_a_job_refused_after_writing_leaves_no_rows(writer: Writer, file: Path) -> None:
    def late_refusal(connection: sqlite3.Connection) -> None:
        write("half")(connection)
        raise SequenceTaken("moved on")

    gate = Gate(writer)
    refused = writer.submit(late_refusal)
    neighbour = writer.submit(write("neighbour"))

    gate.open()
    results = await asyncio.gather(refused, neighbour, return_exceptions=True)

    assert isinstance(results[0], SequenceTaken)
    assert written(file) == {"neighbour"}


async def test_a_job_that_fails_alone_is_rolled_back_and_the_next_one_works(
    writer: Writer, file: Path
) -> None:
    await writer.submit(write("a"))

    with pytest.raises(Unavailable):
        await writer.submit(write("a"))

    await writer.submit(write("b"))
    assert written(file) == {"a", "b"}


async def test_a_cancelled_call_is_skipped(writer: Writer, file: Path) -> None:
    gate = Gate(writer)
    abandoned = writer.submit(write("abandoned"))
    kept = writer.submit(write("kept"))
    abandoned.cancel()

    gate.open()

    assert await kept == "kept"
    assert written(file) == {"abandoned", "kept"}


async def test_no_job_is_accepted_after_closing(writer: Writer) -> None:
    writer.refuse()

    with pytest.raises(Unavailable):
        writer.submit(write("late"))


async def test_no_call_from_a_thread_is_accepted_after_closing(writer: Writer) -> None:
    writer.refuse()

    with pytest.raises(Unavailable):
        await anyio.to_thread.run_sync(writer.call, write("late"))


async def test_a_call_from_a_thread_raises_the_error_of_its_job(writer: Writer) -> None:
    def refuse(_: sqlite3.Connection) -> None:
        raise SequenceTaken("taken")

    with pytest.raises(SequenceTaken):
        await anyio.to_thread.run_sync(writer.call, refuse)


async def test_a_freeze_is_stored_when_the_call_that_counts_it_returns(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "wopr.db"))
    await store.append(TENANT, [batch("run-1")])
    gate = Gate(store._writer)
    counting = asyncio.create_task(asyncio.to_thread(store.count_freeze, TENANT, "run-1", 1, T0))

    _, waiting = await asyncio.wait([counting], timeout=0.2)
    gate.open()
    await counting

    row = await store.run(TENANT, "run-1")
    assert row is not None
    assert (waiting, row.crashes) == ({counting}, 1)
    await store.close()


async def test_a_lock_of_another_process_fails_the_group_as_unavailable(
    writer: Writer, connection: sqlite3.Connection, file: Path
) -> None:
    await writer.submit(lambda c: c.execute("PRAGMA busy_timeout = 1").fetchone())
    rival = sqlite3.connect(file, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")

    with pytest.raises(Unavailable, match="another process"):
        await writer.submit(write("blocked"))

    rival.execute("ROLLBACK")
    rival.close()
    assert await writer.submit(write("free")) == "free"


async def test_a_full_disk_fails_only_what_does_not_fit_and_names_no_path(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "wopr.db"))
    writer = store._writer
    await writer.submit(
        lambda c: c.execute(
            f"PRAGMA max_page_count = {c.execute('PRAGMA page_count').fetchone()[0] + 20}"
        ).fetchone()
    )
    gate = Gate(writer)
    appends = [
        asyncio.ensure_future(store.append(TENANT, [batch("small")])),
        asyncio.ensure_future(store.append(TENANT, [batch("huge", mark="x" * 500_000)])),
        asyncio.ensure_future(store.append(TENANT, [batch("other")])),
    ]
    await asyncio.sleep(0)

    gate.open()
    small, huge, other = await asyncio.gather(*appends, return_exceptions=True)

    assert (small, other) == (True, True)
    assert isinstance(huge, Unavailable)
    assert huge.message == "the store is not available: the database's disk is full"
    assert isinstance(huge.__cause__, sqlite3.OperationalError)
    assert await log(store, "small") == [b"0"]
    assert await store.run(TENANT, "huge") is None
    await store.close()


async def test_a_store_with_a_blocked_writer_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wopr.store.sqlite.store._PROBE_SECONDS", 0.01)
    store = await SqliteStore.open(str(tmp_path / "wopr.db"))
    gate = Gate(store._writer)

    with pytest.raises(Unavailable, match="has not written"):
        await store.check_ready()

    gate.open()
    await store.close()
