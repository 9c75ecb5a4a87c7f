"""The part that keeps the audit log, and the reading of it that works on a copy as well."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wopr.store.port.audit import AuditDraft, AuditRow, CheckpointRow, SinkPosition
from wopr.store.sql.side_rows import (
    CHECKPOINT_COLUMNS,
    ENTRY_COLUMNS,
    checkpoint_row,
    checkpoint_values,
    entry_row,
)
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.reader import Reader

_LAST = (
    "SELECT sequence, body FROM audit_entries WHERE sequence >= 0 ORDER BY sequence DESC LIMIT 1"
)
_INSERT = "INSERT INTO audit_entries (sequence, tenant, body, digest) VALUES (?, ?, ?, ?)"

_HEAD = "SELECT coalesce(max(sequence), -1) FROM audit_entries"
_ENTRIES = f"""
SELECT {ENTRY_COLUMNS} FROM audit_entries
WHERE sequence >= ? ORDER BY sequence LIMIT ?
"""
_PAGE = f"""
SELECT {ENTRY_COLUMNS} FROM audit_entries INDEXED BY audit_entries_by_tenant
WHERE tenant = ? AND sequence < ? ORDER BY sequence DESC LIMIT ?
"""
_END_OF_LOG = 2**63 - 1

_SIGNED_HEAD = "SELECT coalesce(max(at_sequence), -1) FROM audit_checkpoints"
_CHECKPOINTS = f"""
SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints
WHERE at_sequence BETWEEN ? AND ? ORDER BY at_sequence
"""
_LAST_CHECKPOINT = f"""
SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints
WHERE at_sequence < ? ORDER BY at_sequence DESC LIMIT 1
"""
_PUT_CHECKPOINT = f"""
INSERT OR IGNORE INTO audit_checkpoints ({CHECKPOINT_COLUMNS}) VALUES (?, ?, ?, ?, ?)
"""

_SINK = "SELECT sequence, checkpoint FROM audit_sinks WHERE sink = ?"
_PUT_SINK = """
INSERT INTO audit_sinks (sink, sequence, checkpoint) VALUES (?, ?, ?)
ON CONFLICT (sink) DO UPDATE SET
    sequence = max(sequence, excluded.sequence), checkpoint = max(checkpoint, excluded.checkpoint)
"""


def append_entry(connection: sqlite3.Connection, draft: AuditDraft) -> int:
    """Write the next entry of the chain inside the caller's transaction."""
    last = connection.execute(_LAST).fetchone()
    sequence = 0 if last is None else last[0] + 1
    body = draft.link(sequence, None if last is None else last[1])
    digest = hashlib.sha256(body).digest()
    connection.execute(_INSERT, (sequence, draft.tenant, body, digest))
    return sequence


def _append_entries(connection: sqlite3.Connection, drafts: Sequence[AuditDraft]) -> int:
    return [append_entry(connection, draft) for draft in drafts][-1]


class AuditReader:
    """`AuditReading` on SQLite: all that verifying needs."""

    _reader: Reader

    async def audit_head(self) -> int:
        """The sequence of the last entry; -1 when there is none."""
        return int(self._reader.near(_HEAD)[0][0])

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """Entries from `start` on, in order, of all tenants."""
        return [entry_row(row) for row in await self._reader.far(_ENTRIES, (start, limit))]

    async def signed_head(self) -> int:
        """The sequence of the last checkpoint; -1 when there is none."""
        return int(self._reader.near(_SIGNED_HEAD)[0][0])

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """Checkpoints at `start` to `end`, in order."""
        return [checkpoint_row(row) for row in await self._reader.far(_CHECKPOINTS, (start, end))]

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """The last checkpoint below this sequence."""
        rows = self._reader.near(_LAST_CHECKPOINT, (before,))
        return checkpoint_row(rows[0]) if rows else None


class AuditCopy(AuditReader):
    """The audit log of a database file, for reading only: a host's own, or a copy of it."""

    def __init__(self, path: Path, *, is_copy: bool) -> None:
        # A copy with its log beside it must be read with that log.
        has_log = path.with_name(f"{path.name}-wal").exists()
        self._reader = Reader(path, immutable=is_copy and not has_log)

    def close(self) -> None:
        """Release the file."""
        self._reader.close()


class SqliteAudit(Part, AuditReader):
    """`AuditLog` on SQLite."""

    async def append_audit(self, *drafts: AuditDraft) -> int:
        """Give entries of one tenant the next sequences and write them."""
        return await self._writer.submit(partial(_append_entries, drafts=drafts))

    async def audit_page(self, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
        """A tenant's entries below a sequence, newest first."""
        bound = _END_OF_LOG if before is None else before
        return [entry_row(row) for row in await self._reader.far(_PAGE, (tenant, bound, limit))]

    async def sink_position(self, sink: str) -> SinkPosition:
        """How far a sink of this name has come."""
        rows = self._reader.near(_SINK, (sink,))
        return SinkPosition(*rows[0]) if rows else SinkPosition()

    async def put_sink_position(self, sink: str, position: SinkPosition) -> None:
        """Keep how far a sink has come. It never goes back."""
        await self._change(_PUT_SINK, (sink, *position))

    async def put_checkpoint(self, row: CheckpointRow) -> bool:
        """Keep a checkpoint; False when there is one at this sequence already."""
        return await self._change(_PUT_CHECKPOINT, checkpoint_values(row))
