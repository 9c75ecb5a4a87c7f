"""Open the store that a URL names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from wopr.protocol.errors import Refused
from wopr.store.port import Store
from wopr.store.sqlite import SqliteStore
from wopr.store.sqlite.audit import AuditCopy
from wopr.store.sqlite.serving import served_alone

_SQLITE = "sqlite:///"


async def open_store(url: str) -> Store:
    """Open the store at `url`. Raises `Refused` for a form that no adapter knows."""
    return await SqliteStore.open(_sqlite_path(url))


@asynccontextmanager
async def serving_store(url: str) -> AsyncGenerator[Store, None]:
    """Open the store at `url` to advance its runs, and close it at the end.

    Raises `Conflict` when another process serves it and the store can have only one that does.
    """
    path = _sqlite_path(url)
    with served_alone(Path(path)):
        store = await SqliteStore.open(path)
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()


def open_audit(url: str) -> AuditCopy:
    """Open the audit log of the store at `url`, for reading only and without changing a byte."""
    return AuditCopy(Path(_sqlite_path(url)), is_copy=False)


def open_audit_copy(file: Path) -> AuditCopy:
    """Open the audit log of a copy of a database, which nobody writes to."""
    return AuditCopy(file, is_copy=True)


def _sqlite_path(url: str) -> str:
    """The file that `url` names. A refusal does not repeat it: another kind may hold a password."""
    path = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or path in ("", ":memory:"):
        raise Refused(
            "db must be sqlite:///relative/path or sqlite:////absolute/path of a file", field="db"
        )
    return path
