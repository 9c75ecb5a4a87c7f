"""The store itself: its parts on one database file."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import anyio
import anyio.to_thread

from wopr.protocol.errors import Unavailable
from wopr.store.port import StoreFacts
from wopr.store.sqlite.agents import SqliteAgents
from wopr.store.sqlite.annotations import SqliteAnnotations
from wopr.store.sqlite.audit import SqliteAudit
from wopr.store.sqlite.clockwork import SqliteClockwork
from wopr.store.sqlite.connect import open_writer
from wopr.store.sqlite.feedback import SqliteFeedback
from wopr.store.sqlite.fleet_clockwork import SqliteFleetClockwork
from wopr.store.sqlite.fleet_ingest import SqliteFleetIngest
from wopr.store.sqlite.fleet_reads import SqliteFleetReads
from wopr.store.sqlite.idempotency import SqliteAnswers, SqliteInvocations
from wopr.store.sqlite.judges import SqliteJudges
from wopr.store.sqlite.keys import SqliteKeys
from wopr.store.sqlite.memory import SqliteMemories
from wopr.store.sqlite.outbox import SqliteOutbox
from wopr.store.sqlite.projections import SqliteProjections
from wopr.store.sqlite.queues import SqliteQueues
from wopr.store.sqlite.reader import Reader
from wopr.store.sqlite.recovery import SqliteRecovery
from wopr.store.sqlite.runs import SqliteRunLog
from wopr.store.sqlite.schema import schema_version
from wopr.store.sqlite.secrets import SqliteSecrets
from wopr.store.sqlite.suspensions import SqliteSuspensions
from wopr.store.sqlite.traces import SqliteTraces
from wopr.store.sqlite.usage import SqliteUsage
from wopr.store.sqlite.webhooks import SqliteWebhooks
from wopr.store.sqlite.workflows import SqliteWorkflows
from wopr.store.sqlite.writer import Writer

# A real write, because only that shows a full disk or a lost volume.
_PROBE = """
INSERT INTO meta (name, value) VALUES ('probes', 1)
ON CONFLICT (name) DO UPDATE SET value = value + 1
"""
_PROBE_SECONDS = 5.0

_TOTALS = "SELECT count(*), coalesce(sum(last_sequence + 1), 0) FROM runs"

_ENCRYPTION_KEYS = "SELECT key_id FROM encryption_keys ORDER BY added_at, key_id"
_ADD_ENCRYPTION_KEY = "INSERT OR IGNORE INTO encryption_keys (key_id, added_at) VALUES (?, ?)"

_SETTINGS = ("journal_mode", "synchronous", "page_size", "wal_autocheckpoint")


class SqliteStore(
    SqliteRunLog,
    SqliteClockwork,
    SqliteRecovery,
    SqliteSuspensions,
    SqliteWorkflows,
    SqliteAgents,
    SqliteMemories,
    SqliteKeys,
    SqliteSecrets,
    SqliteAnswers,
    SqliteInvocations,
    SqliteAnnotations,
    SqliteFeedback,
    SqliteQueues,
    SqliteJudges,
    SqliteWebhooks,
    SqliteOutbox,
    SqliteAudit,
    SqliteProjections,
    SqliteFleetIngest,
    SqliteFleetReads,
    SqliteFleetClockwork,
    SqliteTraces,
    SqliteUsage,
):
    """`Store` on one SQLite file."""

    # One process serves a file.
    peers: None = None

    def __init__(self, path: Path, writer: Writer, reader: Reader) -> None:
        super().__init__(writer, reader)
        self._path = path

    @classmethod
    async def open(cls, path: str) -> SqliteStore:
        """Open the file at `path`, creating it and its folder, and migrate it.

        Raises `Refused` when the file's schema is newer than this program's, and `Unavailable`
        when it cannot be opened.
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
        """Finish what is queued and release the file."""
        self._writer.refuse()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._release)

    async def ready(self) -> None:
        """Raise `Unavailable` unless a write is taken now."""
        with anyio.move_on_after(_PROBE_SECONDS):
            await self._change(_PROBE)
            return
        raise Unavailable(f"the store has not written for {_PROBE_SECONDS:.0f} seconds")

    async def encryption_keys(self) -> list[str]:
        """Ids of the keys that stored content may be encrypted with."""
        return [key_id for (key_id,) in await self._reader.far(_ENCRYPTION_KEYS)]

    async def add_encryption_key(self, key_id: str) -> None:
        """Record that content is encrypted with a key from now on."""
        await self._change(_ADD_ENCRYPTION_KEY, (key_id, round(time.time() * 1000)))

    async def facts(self) -> StoreFacts:
        """What `wopr doctor` prints."""
        [(runs, events)] = await self._reader.far(_TOTALS)
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
        # The writer last: the last connection to close writes the log back into the file.
        self._writer.finish()
        self._reader.close()
        self._writer.close()


def _settings(connection: sqlite3.Connection) -> tuple[int, dict[str, str]]:
    values = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _SETTINGS}
    return schema_version(connection), {name: str(value) for name, value in values.items()}


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
