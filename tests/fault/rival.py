"""A second writer: it appends to a run's log behind the back of the host that advances it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import msgspec

from tests.fault.inprocess import TENANT
from wopr.protocol.documents import UNSET, JsonObject, encode
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis
from wopr.store.port import Batch, StoredEvent, Wish
from wopr.store.sqlite.append import append_batches
from wopr.store.sqlite.listing import RUN_COLUMNS, run_row

_BUSY_SECONDS = 10.0
_STATUS = {
    "run.cancelled": "cancelled",
    "run.paused": "paused",
    "run.resumed": "running",
}


class Rival:
    """Writes the same file on a connection of its own, at once and not through any queue."""

    def __init__(self, db: Path) -> None:
        self._db = db

    def append(
        self,
        run_id: str,
        event_type: str = "log.appended",
        payload: JsonObject | None = None,
        node_id: str = "",
        wishes: tuple[Wish, ...] = (),
    ) -> str:
        """Append one event at the end of the log and return its id."""
        with closing(
            sqlite3.connect(self._db, timeout=_BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            step, event_id = _step(connection, run_id, event_type, payload or {}, node_id)
            append_batches(connection, TENANT, [replace(step, wishes=wishes)])
            connection.execute("COMMIT")
        return event_id

    def wish(self, run_id: str, body: bytes) -> None:
        """Leave a wish as a parent does that ends its children."""
        self.append(run_id, wishes=(Wish(run_id=run_id, body=body),))


def _step(
    connection: sqlite3.Connection, run_id: str, event_type: str, payload: JsonObject, node_id: str
) -> tuple[Batch, str]:
    selected = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs r WHERE run_id = ?", (run_id,))
    row = run_row(selected.fetchone())
    last = connection.execute(
        "SELECT body FROM events WHERE run_id = ? AND sequence = ?", (run_id, row.last_sequence)
    ).fetchone()[0]
    before = msgspec.json.decode(last, type=RunEvent)
    event = RunEvent(
        event_id=f"rival-{uuid4().hex}",
        run_id=run_id,
        type=event_type,
        payload=payload,
        timestamp=before.timestamp,
        sequence=row.last_sequence + 1,
        node_id=node_id or UNSET,
        causation_id=before.event_id,
    )
    ended_at = to_millis(event.timestamp) if event_type == "run.cancelled" else None
    after = replace(
        row,
        last_sequence=event.sequence,
        status=_STATUS.get(event_type, row.status),
        ended_at=ended_at,
    )
    stored = StoredEvent(sequence=event.sequence, type=event_type, body=encode(event))
    return Batch(run=after, first=event.sequence, events=(stored,)), event.event_id
