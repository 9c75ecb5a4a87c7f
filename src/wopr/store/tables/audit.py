"""The audit log: a chain of entries, signed checkpoints, and the positions of sinks.

On PostgreSQL the chain belongs to the host: functions of the host write and read it, because the
service's role may only read the entries of one tenant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

from wopr.store.port.audit import AuditDraft, AuditRow, CheckpointRow, SinkPosition
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import LARGEST_INTEGER, Row, Variants, variants
from wopr.store.tables.statements import Operation, execute, query

_ENTRY = "sequence, tenant, body, digest"
_LAST = Variants(
    sqlite="""
SELECT sequence, body FROM audit_entries WHERE sequence >= 0 ORDER BY sequence DESC LIMIT 1
""",
    postgres="SELECT sequence, body FROM host_audit_last()",
)
_APPEND = Variants(
    sqlite=f"INSERT INTO audit_entries ({_ENTRY}) VALUES (?, ?, ?, ?)",
    postgres="SELECT host_audit_append(?, ?, ?, ?)",
)
_HEAD = Variants(
    sqlite="SELECT coalesce(max(sequence), -1) FROM audit_entries",
    postgres="SELECT host_audit_head()",
)
_ENTRIES = Variants(
    sqlite=f"SELECT {_ENTRY} FROM audit_entries WHERE sequence >= ? ORDER BY sequence LIMIT ?",
    postgres=f"SELECT {_ENTRY} FROM host_audit_entries(?, ?)",
)
_PAGE = variants(
    lambda dialect: (
        f"""
SELECT {_ENTRY} FROM audit_entries{dialect.indexed_by("audit_entries_by_tenant")}
WHERE tenant = ? AND sequence < ? ORDER BY sequence DESC LIMIT ?
"""
    )
)

_CHECKPOINT = "at_sequence, merkle_root, signature, public_key, peaks"
_SIGNED_HEAD = "SELECT coalesce(max(at_sequence), -1) FROM audit_checkpoints"
_CHECKPOINTS = f"""
SELECT {_CHECKPOINT} FROM audit_checkpoints
WHERE at_sequence BETWEEN ? AND ? ORDER BY at_sequence
"""
_LAST_CHECKPOINT = f"""
SELECT {_CHECKPOINT} FROM audit_checkpoints
WHERE at_sequence < ? ORDER BY at_sequence DESC LIMIT 1
"""
_PUT_CHECKPOINT = Variants(
    sqlite=f"INSERT OR IGNORE INTO audit_checkpoints ({_CHECKPOINT}) VALUES (?, ?, ?, ?, ?)",
    postgres="SELECT host_put_checkpoint(?, ?, ?, ?, ?)",
)

_SINK = Variants(
    sqlite="SELECT sequence, checkpoint FROM audit_sinks WHERE sink = ?",
    postgres="SELECT sequence, checkpoint FROM host_sink_position(?)",
)
_PUT_SINK = Variants(
    sqlite="""
INSERT INTO audit_sinks (sink, sequence, checkpoint) VALUES (?, ?, ?)
ON CONFLICT (sink) DO UPDATE SET
    sequence = max(sequence, excluded.sequence), checkpoint = max(checkpoint, excluded.checkpoint)
""",
    postgres="SELECT host_put_sink_position(?, ?, ?)",
)


class AuditReaderTable(Table):
    """`AuditReader` in SQL: the reads of a verification."""

    async def audit_head(self) -> int:
        """Return the sequence of the last entry; -1 if the log is empty."""
        [(head,)] = await self._sql.read_host_few(_HEAD)
        return int(head)

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """List entries from `start` on, in order, of all tenants."""
        return [_entry(row) for row in await self._sql.read_host_many(_ENTRIES, (start, limit))]

    async def signed_head(self) -> int:
        """Return the sequence of the last checkpoint; -1 without checkpoints."""
        [(head,)] = await self._sql.read_host_few(_SIGNED_HEAD)
        return int(head)

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """List the checkpoints at `start` to `end`, in order."""
        rows = await self._sql.read_host_many(_CHECKPOINTS, (start, end))
        return [_checkpoint(row) for row in rows]

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """Return the last checkpoint below this sequence."""
        rows = await self._sql.read_host_few(_LAST_CHECKPOINT, (before,))
        return _checkpoint(rows[0]) if rows else None


class AuditTable(AuditReaderTable):
    """`AuditLog` in SQL."""

    async def append_audit(self, *drafts: AuditDraft) -> int:
        """Append entries of one tenant, and return the last one's sequence."""
        return await self._sql.transact(drafts[0].tenant, partial(append_entries, drafts))

    async def audit_page(self, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
        """List a tenant's entries below a sequence, newest first."""
        bound = LARGEST_INTEGER if before is None else before
        rows = await self._sql.read_many(tenant, _PAGE, (tenant, bound, limit))
        return [_entry(row) for row in rows]

    async def put_checkpoint(self, row: CheckpointRow) -> bool:
        """Store a checkpoint; False when this sequence already has one."""
        values = (row.at_sequence, row.merkle_root, row.signature, row.public_key, row.peaks)
        return await self._sql.change_host(_PUT_CHECKPOINT, values) > 0

    async def sink_position(self, sink: str) -> SinkPosition:
        """Return the position of the sink of this name."""
        rows = await self._sql.read_host_few(_SINK, (sink,))
        return SinkPosition(int(rows[0][0]), int(rows[0][1])) if rows else SinkPosition()

    async def put_sink_position(self, sink: str, position: SinkPosition) -> None:
        """Store the position of a sink. A position never decreases."""
        await self._sql.change_host(_PUT_SINK, (sink, *position))


def append_entries(drafts: Sequence[AuditDraft]) -> Operation[int]:
    """Append entries to the chain, and return the last one's sequence; -1 without entries.

    On PostgreSQL the chain is locked from here to the end of the transaction, so an operation
    calls this last.
    """
    if not drafts:
        return -1
    last = yield query(_LAST)
    sequence, body = (-1, None) if not last else (int(last[0][0]), bytes(last[0][1]))
    for draft in drafts:
        sequence += 1
        body = draft.link(sequence, body)
        digest = hashlib.sha256(body).digest()
        yield execute(_APPEND, (sequence, draft.tenant, body, digest))
    return sequence


def _entry(row: Row) -> AuditRow:
    return AuditRow(sequence=row[0], tenant=row[1], body=row[2], digest=row[3])


def _checkpoint(row: Row) -> CheckpointRow:
    return CheckpointRow(
        at_sequence=row[0], merkle_root=row[1], signature=row[2], public_key=row[3], peaks=row[4]
    )
