"""A second writer: it appends to a run's log while another host advances the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec
import psycopg

from tests.support.in_process import TENANT
from tests.support.postgres.tokens import stored_key, tenant_token
from wopr.protocol.documents import UNSET, JsonObject, encode, to_millis
from wopr.protocol.events import RunEvent
from wopr.store.port import Batch, PendingCommand, RunRow, StoredEvent
from wopr.store.postgres.append import APPEND, encode_call
from wopr.store.sqlite.append import append_batches
from wopr.store.tables.runs.rows import RUN_COLUMNS, run_row

Connection: TypeAlias = "sqlite3.Connection | psycopg.Connection[Any]"

_BUSY_SECONDS = 60.0
_ROW = f"SELECT {RUN_COLUMNS} FROM runs r WHERE run_id = '{{}}'"
_EVENT = "SELECT body FROM events WHERE run_id = '{}' AND sequence = {}"
_STATUS = {
    "run.cancelled": "cancelled",
    "run.paused": "paused",
    "run.resumed": "running",
}


class SecondWriter:
    """Write to the same database on a separate connection, without a queue."""

    def __init__(self, database: Path | str) -> None:
        self._database = database

    def append(
        self,
        run_id: str,
        event_type: str = "log.appended",
        payload: JsonObject | None = None,
        node_id: str = "",
        commands: tuple[PendingCommand, ...] = (),
    ) -> str:
        """Append one event at the end of the log and return its id."""
        with _connected(self._database) as connection:
            row, last = _end(connection, run_id)
            event = _event(last, event_type, payload or {}, node_id)
            _append(connection, replace(_step(row, event), commands=commands))
        return event.event_id

    def add_command(self, run_id: str, body: bytes) -> None:
        """Store a pending command, like a parent that ends its children."""
        self.append(run_id, commands=(PendingCommand(run_id=run_id, body=body),))


@contextmanager
def _connected(database: Path | str) -> Iterator[Connection]:
    """Open a separate transaction on a file, or on a server's database as its administrator."""
    if isinstance(database, str):
        with psycopg.connect(database, options="-c search_path=wopr") as server:
            yield server
        return
    with closing(
        sqlite3.connect(database, timeout=_BUSY_SECONDS, isolation_level=None)
    ) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


def _end(connection: Connection, run_id: str) -> tuple[RunRow, RunEvent]:
    """Return the run's row and the last event of its log."""
    # On a file no other writer is active meanwhile.
    held = "" if isinstance(connection, sqlite3.Connection) else " FOR UPDATE"
    [columns] = connection.execute(_ROW.format(run_id) + held).fetchall()
    row = run_row(columns)
    [(body,)] = connection.execute(_EVENT.format(run_id, row.last_sequence)).fetchall()
    return row, msgspec.json.decode(body, type=RunEvent)


def _event(before: RunEvent, event_type: str, payload: JsonObject, node_id: str) -> RunEvent:
    return RunEvent(
        event_id=f"rival-{uuid4().hex}",
        run_id=before.run_id,
        type=event_type,
        payload=payload,
        timestamp=before.timestamp,
        sequence=before.sequence + 1,
        node_id=node_id or UNSET,
        causation_id=before.event_id,
    )


def _step(row: RunRow, event: RunEvent) -> Batch:
    after = replace(
        row,
        last_sequence=event.sequence,
        status=_STATUS.get(event.type, row.status),
        ended_at=to_millis(event.timestamp) if event.type == "run.cancelled" else None,
    )
    stored = StoredEvent(sequence=event.sequence, type=event.type, body=encode(event))
    return Batch(run=after, first=event.sequence, events=(stored,))


def _append(connection: Connection, step: Batch) -> None:
    if isinstance(connection, sqlite3.Connection):
        append_batches(connection, TENANT, [step])
        return
    token = tenant_token(stored_key(connection), connection, TENANT)
    values = encode_call(TENANT, [step]).values(token)
    [(answer,)] = connection.execute(APPEND, values).fetchall()
    assert answer == "ok"
