"""What an operator can set about a store's connections; a store in a file has none to set."""

from __future__ import annotations

from dataclasses import dataclass


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
