"""Open the store that a URL names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path

import anyio

from wopr.protocol.errors import Refused
from wopr.store.encrypted import with_encryption
from wopr.store.port import Store
from wopr.store.port.audit import AuditReader
from wopr.store.port.store import StoreOptions
from wopr.store.sqlite import SqliteStore
from wopr.store.sqlite.connections import lock_database
from wopr.store.sqlite.database import AuditCopy

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def is_shared(url: str) -> bool:
    """Return whether several processes can serve the database that a URL names."""
    return url.startswith(_POSTGRES)


async def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """Open the store at `url`.

    Raises `Refused` for an invalid URL, and if content is encrypted with a key that the options do
    not have.
    """
    opened: Store
    if is_shared(url):
        opened = await _open_postgres(url, options)
    else:
        opened = await SqliteStore.open(sqlite_path(url))
    try:
        return await with_encryption(opened, None if options is None else options.cipher)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await opened.close()
        raise


@asynccontextmanager
async def serving_store(
    url: str, options: StoreOptions | None = None
) -> AsyncGenerator[Store, None]:
    """Open the store at `url` to advance its runs, and close it at the end.

    Raises `Conflict` if the store supports only one process, and another process serves it.
    """
    lock = nullcontext() if is_shared(url) else lock_database(Path(sqlite_path(url)))
    with lock:
        store = await open_store(url, options)
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()


@asynccontextmanager
async def open_audit(
    url: str, options: StoreOptions | None = None
) -> AsyncGenerator[AuditReader, None]:
    """Open the audit log of the store at `url` for reading."""
    if is_shared(url):
        store = await _open_postgres(url, options)
        try:
            yield store
        finally:
            await store.close()
    else:
        with closing(AuditCopy(Path(sqlite_path(url)), is_copy=False)) as log:
            yield log


@asynccontextmanager
async def open_audit_copy(file: Path) -> AsyncGenerator[AuditReader, None]:
    """Open the audit log of a copy of a SQLite database that no process writes to."""
    with closing(AuditCopy(file, is_copy=True)) as log:
        yield log


async def _open_postgres(url: str, options: StoreOptions | None) -> Store:
    try:
        from wopr.store.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        raise missing_driver_error(missing) from None
    return await PostgresStore.open(url, options)


def missing_driver_error(missing: ModuleNotFoundError) -> Refused:
    """Return the error for a missing package of PostgreSQL."""
    return Refused(
        f"PostgreSQL needs the package {missing.name}: install it with wopr[postgres]", field="db"
    )


def sqlite_path(url: str) -> str:
    """Return the path in `url`. The error does not contain the URL, which may have a password."""
    path = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or path in ("", ":memory:"):
        raise Refused(
            "db must be sqlite:///relative/path or sqlite:////absolute/path of a file, or "
            "postgresql://user:password@host:port/database",
            field="db",
        )
    return path
