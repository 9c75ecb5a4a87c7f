"""The part that keeps the audit log."""

from __future__ import annotations

from functools import partial

from wopr.store.port.audit import AuditDraft, AuditRow, CheckpointRow, SinkPosition
from wopr.store.postgres.audit_chain import append_entries
from wopr.store.postgres.part import Part
from wopr.store.sql.side_rows import (
    CHECKPOINT_COLUMNS,
    ENTRY_COLUMNS,
    checkpoint_row,
    checkpoint_values,
    entry_row,
)

_HEAD = "SELECT host_audit_head()"
_ENTRIES = f"SELECT {ENTRY_COLUMNS} FROM host_audit_entries(%s, %s)"
_PAGE = f"""
SELECT {ENTRY_COLUMNS} FROM audit_entries
WHERE tenant = %s AND sequence < %s ORDER BY sequence DESC LIMIT %s
"""
_END_OF_LOG = 2**63 - 1

_SIGNED_HEAD = "SELECT coalesce(max(at_sequence), -1) FROM audit_checkpoints"
_CHECKPOINTS = f"""
SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints
WHERE at_sequence BETWEEN %s AND %s ORDER BY at_sequence
"""
_LAST_CHECKPOINT = f"""
SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints
WHERE at_sequence < %s ORDER BY at_sequence DESC LIMIT 1
"""
_PUT_CHECKPOINT = "SELECT host_put_checkpoint(%s, %s, %s, %s, %s)"

_SINK = "SELECT sequence, checkpoint FROM host_sink_position(%s)"
_PUT_SINK = "SELECT host_put_sink_position(%s, %s, %s)"


class PostgresAudit(Part):
    """`AuditLog` on PostgreSQL."""

    async def audit_head(self) -> int:
        """The sequence of the last entry; -1 when there is none."""
        [(head,)] = await self._db.ask(_HEAD)
        return int(head)

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """Entries from `start` on, in order, of all tenants."""
        return [entry_row(row) for row in await self._db.ask(_ENTRIES, (start, limit))]

    async def audit_page(self, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
        """A tenant's entries below a sequence, newest first."""
        bound = _END_OF_LOG if before is None else before
        rows = await self._db.read(tenant, _PAGE, (tenant, bound, limit))
        return [entry_row(row) for row in rows]

    async def append_audit(self, *drafts: AuditDraft) -> int:
        """Give entries of one tenant the next sequences and write them."""
        return await self._db.run(drafts[0].tenant, partial(append_entries, drafts=drafts))

    async def signed_head(self) -> int:
        """The sequence of the last checkpoint; -1 when there is none."""
        [(head,)] = await self._db.ask(_SIGNED_HEAD)
        return int(head)

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """Checkpoints at `start` to `end`, in order."""
        return [checkpoint_row(row) for row in await self._db.ask(_CHECKPOINTS, (start, end))]

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """The last checkpoint below this sequence."""
        rows = await self._db.ask(_LAST_CHECKPOINT, (before,))
        return checkpoint_row(rows[0]) if rows else None

    async def put_checkpoint(self, row: CheckpointRow) -> bool:
        """Keep a checkpoint; False when there is one at this sequence already."""
        return bool(await self._db.tell(_PUT_CHECKPOINT, checkpoint_values(row)))

    async def sink_position(self, sink: str) -> SinkPosition:
        """How far a sink of this name has come."""
        rows = await self._db.ask(_SINK, (sink,))
        return SinkPosition(int(rows[0][0]), int(rows[0][1])) if rows else SinkPosition()

    async def put_sink_position(self, sink: str, position: SinkPosition) -> None:
        """Keep how far a sink has come. It never goes back."""
        await self._db.tell(_PUT_SINK, (sink, *position))
