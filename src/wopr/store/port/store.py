"""One store: every part of the port on one database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from wopr.store.port.audit import AuditLog
from wopr.store.port.credentials import EndedSessions, Keys, Secrets
from wopr.store.port.definitions import AgentManifests, Workflows
from wopr.store.port.feedback import Annotations, Judges, ReviewQueues
from wopr.store.port.fleet import Fleet, FleetMaintenance, Projections
from wopr.store.port.idempotency import Idempotency
from wopr.store.port.maintenance import Maintenance, Recovery
from wopr.store.port.memories import Memories
from wopr.store.port.peers import Peers
from wopr.store.port.runs import RunLog
from wopr.store.port.suspensions import Suspensions
from wopr.store.port.traces import Traces
from wopr.store.port.usage import Usage
from wopr.store.port.webhooks import Outbox, Webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts about a store that `wopr doctor` prints."""

    kind: str
    location: str
    schema_version: int
    runs: int
    events: int
    bytes_on_disk: int
    settings: dict[str, str] = field(default_factory=dict)


class Store(
    RunLog,
    Maintenance,
    Recovery,
    Suspensions,
    Workflows,
    AgentManifests,
    Memories,
    Keys,
    Secrets,
    Idempotency,
    EndedSessions,
    Annotations,
    ReviewQueues,
    Judges,
    Webhooks,
    Outbox,
    AuditLog,
    Projections,
    Fleet,
    FleetMaintenance,
    Traces,
    Usage,
    Protocol,
):
    """All parts of the store, on one database."""

    @property
    def peers(self) -> Peers | None:
        """The processes that share the database; None if the database supports only one process."""
        ...

    async def close(self) -> None:
        """Finish queued writes and release the database."""
        ...

    async def check_ready(self) -> None:
        """Raise `Unavailable` unless the store accepts a write now."""
        ...

    async def encryption_keys(self) -> list[str]:
        """List the ids of the keys that stored content may be encrypted with."""
        ...

    async def add_encryption_key(self, key_id: str) -> None:
        """Record that content is encrypted with a key from now on."""
        ...

    async def facts(self) -> StoreFacts:
        """Return facts about the store, without a password."""
        ...


class ContentCipher(Protocol):
    """Encrypts with the newest key and decrypts with each of its keys.

    The context names the place of a value; a value cannot be decrypted in another place. A value
    that was stored without encryption is returned unchanged.
    """

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of its keys, the newest first."""
        ...

    @property
    def head(self) -> bytes:
        """The first bytes of a value that is encrypted with the newest key."""
        ...

    @property
    def text_head(self) -> str:
        """The first characters of a text that is encrypted with the newest key."""
        ...

    def encrypt(self, plain: bytes, *context: str | int) -> bytes:
        """Encrypt bytes."""
        ...

    def decrypt(self, stored: bytes, *context: str | int) -> bytes:
        """Decrypt bytes."""
        ...

    def encrypt_text(self, plain: str, *context: str | int) -> str:
        """Encrypt a text into a text."""
        ...

    def decrypt_text(self, stored: str, *context: str | int) -> str:
        """Decrypt a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Connections of one process to a database server, their timeouts, and keys."""

    # The largest number of connections, including those for appends.
    pool_size: int = 10
    # Timeouts of the wait for a connection, and of a statement.
    pool_timeout_seconds: float = 10.0
    statement_timeout_seconds: float = 30.0
    # Statements that take at least this long are logged; 0 logs none.
    slow_statement_ms: int = 500
    # The key that signs tenants for a database server. Without one a login that owns the tables
    # uses a key of the database.
    tenant_key: bytes | None = field(default=None, repr=False)
    # Encrypts stored content; None stores it without encryption.
    cipher: ContentCipher | None = field(default=None, repr=False)
