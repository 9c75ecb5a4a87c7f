"""Turn SQLite's errors into the host's own, so that no driver error leaves the adapter."""

from __future__ import annotations

import sqlite3

from wopr.protocol.errors import Unavailable

# The causes an operator can act on. The message never repeats the driver's text: it may name paths.
_CAUSES = {
    "SQLITE_BUSY": "another process holds the database's lock",
    "SQLITE_CANTOPEN": "the database file cannot be opened",
    "SQLITE_CORRUPT": "the database file is damaged",
    "SQLITE_FULL": "the database's disk is full",
    "SQLITE_NOTADB": "the file is not a database",
    "SQLITE_READONLY": "the database is read-only",
}


def unavailable(error: sqlite3.Error) -> Unavailable:
    """Describe a driver error without its text; the caller chains the original."""
    # Errors of the driver itself, such as the use of a closed connection, have no name.
    name: str = getattr(error, "sqlite_errorname", type(error).__name__)
    cause = next((text for prefix, text in _CAUSES.items() if name.startswith(prefix)), name)
    return Unavailable(f"the store is not available: {cause}")
