from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rows import TENANT, batch, ended, suspending, suspension
from wopr.store.port import Batch
from wopr.store.sqlite.append import append_batches
from wopr.store.sqlite.connections import open_writer


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_writer(tmp_path / "wopr.db")
    yield connection
    connection.close()


def statements_on_suspensions(database: sqlite3.Connection, *batches: Batch) -> list[str]:
    seen: list[str] = []
    database.set_trace_callback(seen.append)
    append_batches(database, TENANT, batches)
    database.set_trace_callback(None)
    return [sql for sql in seen if "suspensions" in sql]


def test_a_run_without_interrupts_writes_no_suspensions(
    database: sqlite3.Connection,
) -> None:
    assert statements_on_suspensions(database, batch(), batch(first=1)) == []
    assert statements_on_suspensions(database, ended(first=2)) == []


def test_the_end_of_a_run_deletes_its_suspensions(database: sqlite3.Connection) -> None:
    append_batches(database, TENANT, [suspending(suspension())])

    assert statements_on_suspensions(database, batch(first=1)) == []
    assert len(statements_on_suspensions(database, ended(first=2))) == 1
