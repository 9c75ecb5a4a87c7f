"""Connections to a database file, their errors, and the lock for the serving process."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from wopr.protocol.errors import Conflict, Unavailable
from wopr.store.sqlite.migrations import migrate

# Causes that an operator can act on. The message never has the driver's text, which may name paths.
_CAUSES = {
    "SQLITE_BUSY": "another process holds the database's lock",
    "SQLITE_CANTOPEN": "the database file cannot be opened",
    "SQLITE_CORRUPT": "the database file is damaged",
    "SQLITE_FULL": "the database's disk is full",
    "SQLITE_NOTADB": "the file is not a database",
    "SQLITE_READONLY": "the database is read-only",
}


def unavailable_error(error: sqlite3.Error) -> Unavailable:
    """Return the host's error for a driver's error, without its text.

    The caller chains the original.
    """
    # Errors of the Python driver, such as the use of a closed connection, have no name.
    name: str = getattr(error, "sqlite_errorname", type(error).__name__)
    cause = next((text for prefix, text in _CAUSES.items() if name.startswith(prefix)), name)
    return Unavailable(f"the store is not available: {cause}")


# The prefix of the name of a database in memory.
MEMORY = ":memory:"
# How long to wait for a lock of another process, such as a backup.
_BUSY_SECONDS = 5.0

_WRITER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # FULL: an acknowledged commit is on disk. NORMAL could lose the last commits at a power
    # failure.
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -16000",
    # The log stays within one block of its index, and a page that changes often is copied once.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
)


def is_in_memory(path: Path) -> bool:
    """Return whether a path names a database in memory."""
    return path.name.startswith(MEMORY)


def open_writer(path: Path) -> sqlite3.Connection:
    """Create the file if it is missing, readable by its owner only, and migrate its schema."""
    if not is_in_memory(path):
        _create(path)
    try:
        return _connect_writer(path)
    except sqlite3.Error as error:
        raise unavailable_error(error) from error


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write.

    With `immutable` the file may be on a read-only disk; no process may write to it meanwhile.
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
        raise unavailable_error(error) from error


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
        if is_in_memory(path)
        else f"{path.absolute().as_uri()}?{mode}"
    )


def _connect_writer(path: Path) -> sqlite3.Connection:
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


_LONGEST_PID = 20


@contextmanager
def lock_database(file: Path) -> Generator[None, None, None]:
    """Lock a database file for this process. Raises `Conflict` if another process serves it.

    Two hosts would advance the same runs and perform their effects twice. Other commands, such as
    those for keys, need no lock. The kernel releases the lock when the process ends. The lock file
    is not removed, because another process could then lock a new file of the same name.
    """
    if is_in_memory(file):
        # No other process can open a database in memory.
        yield
        return
    descriptor = _open_lock_file(file.with_name(f"{file.name}.lock"))
    try:
        _lock(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(
            f"the lock file of the database cannot be created: {error.strerror}"
        ) from error


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as taken:
        holder = os.pread(descriptor, _LONGEST_PID, 0).decode(errors="replace")
        raise Conflict(
            f"another wopr process ({holder or 'unknown'}) serves this database: stop it first, or "
            "start this process with a different --data-dir"
        ) from taken
