"""What an operator can set about a store."""

from __future__ import annotations

from dataclasses import dataclass, field

from wopr.store.port.content import ContentCipher


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Connections of one process to a database server, and how long they are patient."""

    # The most connections at once, those that append included.
    pool_size: int = 10
    # How long a call waits for a connection, and a statement for its end.
    pool_timeout_seconds: float = 10.0
    statement_timeout_seconds: float = 30.0
    # Statements that took at least so long are logged by name; 0 logs none.
    slow_statement_ms: int = 500
    # The key that signs tenants for a database server. Without one a login that owns the tables
    # uses a key of the database.
    tenant_key: bytes | None = field(default=None, repr=False)
    # Encrypts stored content; None stores it as it is.
    cipher: ContentCipher | None = field(default=None, repr=False)
