"""`Store` on SQLite: its parts on one database file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import anyio
import anyio.to_thread

from wopr.protocol.errors import Unavailable
from wopr.store.port import StoreFacts
from wopr.store.sqlite.connections import open_writer
from wopr.store.sqlite.maintenance import SqliteMaintenance
from wopr.store.sqlite.migrations import schema_version
from wopr.store.sqlite.reader import Reader
from wopr.store.sqlite.runs import SqliteRunLog
from wopr.store.sqlite.writer import Writer
from wopr.store.tables.audit import AuditTable
from wopr.store.tables.credentials import KeyTable, SecretTable, SessionTable
from wopr.store.tables.definitions import AgentTable, WorkflowTable
from wopr.store.tables.encryption_keys import EncryptionKeyTable
from wopr.store.tables.feedback.annotations import AnnotationTable
from wopr.store.tables.feedback.judges import JudgeTable
from wopr.store.tables.feedback.reviews import ReviewQueueTable
from wopr.store.tables.fleet.projections import ProjectionTable
from wopr.store.tables.fleet.retention import FleetRetentionTable
from wopr.store.tables.fleet.runs import FleetRunTable
from wopr.store.tables.fleet.traces import TraceTable
from wopr.store.tables.memories import MemoryTable
from wopr.store.tables.runs.idempotency import IdempotencyTable
from wopr.store.tables.runs.suspensions import SuspensionTable
from wopr.store.tables.usage import UsageTable
from wopr.store.tables.webhooks import DeliveryTable, WebhookTable

# A write, because a read does not fail on a full disk.
_PROBE = """
INSERT INTO meta (name, value) VALUES ('probes', 1)
ON CONFLICT (name) DO UPDATE SET value = value + 1
"""
_PROBE_SECONDS = 5.0

_TOTALS = "SELECT count(*), coalesce(sum(last_sequence + 1), 0) FROM runs"

_SETTINGS = ("journal_mode", "synchronous", "page_size", "wal_autocheckpoint")


class SqliteStore(
    SqliteRunLog,
    SqliteMaintenance,
    SuspensionTable,
    WorkflowTable,
    AgentTable,
    MemoryTable,
    KeyTable,
    SecretTable,
    IdempotencyTable,
    AnnotationTable,
    ReviewQueueTable,
    JudgeTable,
    SessionTable,
    EncryptionKeyTable,
    WebhookTable,
    DeliveryTable,
    AuditTable,
    ProjectionTable,
    FleetRunTable,
    FleetRetentionTable,
    TraceTable,
    UsageTable,
):
    """`Store` on one SQLite file."""

    # Only one process can serve a file.
    peers: None = None

    def __init__(self, path: Path, writer: Writer, reader: Reader) -> None:
        super().__init__(writer, reader)
        self._path = path

    @classmethod
    async def open(cls, path: str) -> SqliteStore:
        """Open the file at `path`, create it and its folder if needed, and migrate its schema.

        Raises `Refused` if the schema is newer than this program's, and `Unavailable` if the file
        cannot be opened.
        """
        file = Path(path)
        connection = await anyio.to_thread.run_sync(open_writer, file)
        try:
            reader = await anyio.to_thread.run_sync(Reader, file)
        except BaseException:
            connection.close()
            raise
        return cls(file, Writer(connection), reader)

    async def close(self) -> None:
        """Finish queued writes and release the file."""
        self._writer.refuse()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._release)

    async def check_ready(self) -> None:
        """Raise `Unavailable` unless the store accepts a write now."""
        with anyio.move_on_after(_PROBE_SECONDS):
            await self._change(_PROBE)
            return
        raise Unavailable(f"the store has not written for {_PROBE_SECONDS:.0f} seconds")

    async def facts(self) -> StoreFacts:
        """Return what `wopr doctor` prints."""
        [(runs, events)] = await self._reader.read_in_thread(_TOTALS)
        version, settings = await self._writer.submit(_settings)
        return StoreFacts(
            kind="sqlite",
            location=str(self._path),
            schema_version=version,
            runs=runs,
            events=events,
            bytes_on_disk=sum(_size(f"{self._path}{suffix}") for suffix in ("", "-wal")),
            settings={"sqlite": sqlite3.sqlite_version, **settings},
        )

    def _release(self) -> None:
        # The writer closes last, because the last connection checkpoints the write-ahead log.
        self._writer.finish()
        self._reader.close()
        self._writer.close()


def _settings(connection: sqlite3.Connection) -> tuple[int, dict[str, str]]:
    values = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _SETTINGS}
    return schema_version(connection), {name: str(value) for name, value in values.items()}


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
