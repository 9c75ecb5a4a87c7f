"""The audit log: one chain of entries for the whole host.

The chain has the entries of all tenants, so a verification reads all of them. A tenant sees only
its own entries, through `audit_page`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

# Builds the bytes of an entry from its sequence and the bytes of the previous entry, if any.
EntryBuilder: TypeAlias = Callable[[int, bytes | None], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDraft:
    """An entry before it is written. The write assigns its sequence and links it to the chain."""

    tenant: str
    link: EntryBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """An entry: `body` is its canonical JSON, `digest` the SHA-256 of these bytes."""

    sequence: int
    tenant: str
    body: bytes
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A signed Merkle root over the entries up to `at_sequence`.

    `peaks` are the roots of the full subtrees. From them the next checkpoint is computed without
    reading the log from its beginning.
    """

    at_sequence: int
    merkle_root: str
    signature: str
    public_key: str
    peaks: bytes


class SinkPosition(NamedTuple):
    """The last entry and the last checkpoint that a sink has accepted; -1 before the first."""

    sequence: int = -1
    checkpoint: int = -1


class AuditReader(Protocol):
    """The reads that a verification needs; they also work on a copy of the database."""

    async def audit_head(self) -> int:
        """Return the sequence of the last entry; -1 if the log is empty."""
        ...

    async def signed_head(self) -> int:
        """Return the sequence of the last checkpoint; -1 without checkpoints."""
        ...

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """List entries from `start` on, in order, of all tenants."""
        ...

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """List the checkpoints at `start` to `end`, both included, in order."""
        ...

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """Return the last checkpoint below this sequence."""
        ...


class AuditLog(AuditReader, Protocol):
    """The append-only audit log. Entries are never changed or deleted."""

    async def append_audit(self, *drafts: AuditDraft) -> int:
        """Append entries of one tenant, all or none, and return the last one's sequence."""
        ...

    async def audit_page(self, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
        """List a tenant's entries below a sequence, newest first."""
        ...

    async def put_checkpoint(self, row: CheckpointRow) -> bool:
        """Store a checkpoint; False if this sequence already has one."""
        ...

    async def sink_position(self, sink: str) -> SinkPosition:
        """Return the position of the sink of this name."""
        ...

    async def put_sink_position(self, sink: str, position: SinkPosition) -> None:
        """Store the position of a sink. A position never decreases."""
        ...
