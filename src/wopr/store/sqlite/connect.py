"""Open connections: the one that writes, and those that only read."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from wopr.protocol.errors import Unavailable
from wopr.store.sqlite.faults import unavailable
from wopr.store.sqlite.schema import migrate

# How the name of a database begins that lives in memory only.
MEMORY = ":memory:"
# How long a lock of another process, such as a backup, is waited for.
_BUSY_SECONDS = 5.0

_WRITER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # FULL: an acknowledged commit is on disk. NORMAL would lose the last ones at a power cut.
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -16000",
    # The log stays within one block of its index, and a page that many groups touch is copied once.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
)


def in_memory(path: Path) -> bool:
    """Tell whether a path is the name of a database without a file, which ends with its host."""
    return path.name.startswith(MEMORY)


def open_writer(path: Path) -> sqlite3.Connection:
    """Create the file if need be, readable by its owner only, and bring its schema up to date."""
    if not in_memory(path):
        _create(path)
    try:
        return _prepared(path)
    except sqlite3.Error as error:
        raise unavailable(error) from error


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write, whatever statement it is given.

    A file that nobody writes to may be opened as `immutable`: then it can lie where nothing can
    be written, such as a read-only disk.
    """
    mode = "mode=ro&immutable=1" if immutable else "mode=ro"
    try:
        return sqlite3.connect(
            _uri(path, mode),
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise unavailable(error) from error


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Unavailable(f"the database file cannot be created: {error.strerror}") from error


def _uri(path: Path, mode: str) -> str:
    # All connections of this process that name the same database in memory share it.
    return (
        f"file:/{path.name}?vfs=memdb&{mode}"
        if in_memory(path)
        else f"{path.absolute().as_uri()}?{mode}"
    )


def _prepared(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        _uri(path, "mode=rwc"),
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        for pragma in _WRITER_PRAGMAS:
            connection.execute(pragma)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection
