"""The part of the store's port about the audit log: one chain for the whole host.

The chain runs through all tenants, so reading it to verify it does too. What a tenant is shown
comes from `audit_page`, which names the tenant like every other call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

# Makes an entry's bytes from its sequence and the bytes of the entry before; None at the beginning.
Link: TypeAlias = Callable[[int, bytes | None], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDraft:
    """An entry that gets its place in the chain when it is written."""

    tenant: str
    link: Link


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

    `peaks` are the roots of the full subtrees that it is made of, so that the next checkpoint
    need not read the log from its beginning.
    """

    at_sequence: int
    merkle_root: str
    signature: str
    public_key: str
    peaks: bytes


class SinkPosition(NamedTuple):
    """The last entry and the last checkpoint that an audit sink has taken; -1 before the first."""

    sequence: int = -1
    checkpoint: int = -1


class AuditReading(Protocol):
    """What verifying needs; a copy of the database has it too."""

    async def audit_head(self) -> int:
        """The sequence of the last entry; -1 when there is none."""
        ...

    async def signed_head(self) -> int:
        """The sequence of the last checkpoint; -1 when there is none."""
        ...

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """Entries from `start` on, in order, of all tenants."""
        ...

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """Checkpoints at `start` to `end`, both included, in order."""
        ...

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """The last checkpoint below this sequence."""
        ...


class AuditLog(AuditReading, Protocol):
    """The append-only audit log. Nothing is ever taken away or changed."""

    async def append_audit(self, *drafts: AuditDraft) -> int:
        """Give entries of one tenant the next sequences and write all or none of them.

        Answers with the last one's sequence.
        """
        ...

    async def audit_page(self, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
        """A tenant's entries below a sequence, newest first."""
        ...

    async def put_checkpoint(self, row: CheckpointRow) -> bool:
        """Keep a checkpoint; False when there is one at this sequence already."""
        ...

    async def sink_position(self, sink: str) -> SinkPosition:
        """How far a sink of this name has come."""
        ...

    async def put_sink_position(self, sink: str, position: SinkPosition) -> None:
        """Keep how far a sink has come. It never goes back."""
        ...
