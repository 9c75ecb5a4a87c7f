"""One process serves a database file: a lock beside the file says which."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from wopr.protocol.errors import Conflict, Unavailable
from wopr.store.sqlite.connect import in_memory

_LONGEST_PID = 20


@contextmanager
def served_alone(file: Path) -> Generator[None, None, None]:
    """Be the only process that serves this file. Raises `Conflict` when another one does.

    Two hosts would advance the same runs and perform their effects twice. Other commands, such as
    those for keys, need no lock. The kernel releases it when the process ends, however it ends; the
    lock's file stays, because a file that is removed can be locked once more under the same name.
    """
    if in_memory(file):
        # No other process can open it.
        yield
        return
    descriptor = _opened(file.with_name(f"{file.name}.lock"))
    try:
        _lock(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(f"the database's lock cannot be created: {error.strerror}") from error


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as taken:
        holder = os.pread(descriptor, _LONGEST_PID, 0).decode(errors="replace")
        raise Conflict(
            f"another wopr process ({holder or 'unknown'}) serves this database: stop it first, or "
            "give this one a --data-dir of its own"
        ) from taken
