"""The data directory, and access to the database for commands that work without a host."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from wopr.cli.errors import CliError, exit_code_of_status
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused, WoprError

if TYPE_CHECKING:
    from wopr.store.port import Store
    from wopr.store.port.audit import AuditDraft
    from wopr.store.port.store import StoreOptions


DATA_DIR_VARIABLE: Final = "WOPR_DATA_DIR"


def data_dir(chosen: Path | None = None) -> Path:
    """Return the data directory: the chosen one, else `WOPR_DATA_DIR`, else `./data`."""
    return chosen or Path(os.environ.get(DATA_DIR_VARIABLE) or "data")


def database_url(chosen: str | None = None, directory: Path | None = None) -> str:
    """Return the database: the chosen URL, else a SQLite file in the data directory."""
    return chosen or f"sqlite:///{data_dir(directory) / 'wopr.db'}"


def credentials_path(directory: Path | None = None) -> Path:
    """Return the path of the credentials file, with the URL and the first key of `wopr serve`."""
    return data_dir(directory) / "credentials.json"


R = TypeVar("R")


def store_options(url: str, directory: Path | None = None) -> StoreOptions:
    """Return the options to open a database, with the keys of this machine.

    This never creates a host key, because this machine may not run a host.
    """
    from wopr.process.keys import TENANT_KEY, UnusableHostKey, content_cipher, find_host_key
    from wopr.security.encryption import UnusableKeys, derive
    from wopr.store.open import is_shared
    from wopr.store.port.store import StoreOptions

    try:
        cipher = content_cipher(os.environ)
        secret = find_host_key(data_dir(directory), os.environ) if is_shared(url) else None
    except (UnusableHostKey, UnusableKeys) as fault:
        raise Refused(str(fault), field="db") from None
    key = None if secret is None else derive(secret, TENANT_KEY)
    return StoreOptions(tenant_key=key, cipher=cipher)


def with_store(
    db: str | None, work: Callable[[Store], Awaitable[R]], directory: Path | None = None
) -> R:
    """Open the database, do the work and close it."""
    import anyio

    from wopr.store.open import open_store

    async def use() -> R:
        url = database_url(db)
        store = await open_store(url, store_options(url, directory))
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return anyio.run(use)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None


def audit_draft(
    store: Store, tenant: str, action: str, resource: str, **details: Json
) -> AuditDraft:
    """Create an audit entry of this command. Write it in the transaction of the change."""
    from wopr.security.redact import Redactors
    from wopr.services.audit.trail import AuditTrail, local_operator

    trail = AuditTrail(store, now_ms, Redactors())
    return trail.draft(tenant, local_operator(), action, resource, **details)


async def write_audit_entry(
    store: Store, tenant: str, action: str, resource: str, **details: Json
) -> None:
    """Write an audit entry of this command."""
    await store.append_audit(audit_draft(store, tenant, action, resource, **details))


async def audit_read(store: Store, tenant: str, action: str, resource: str) -> None:
    """Write an audit entry for a sensitive read, if `WOPR_AUDIT_READS` requires it."""
    if os.environ.get("WOPR_AUDIT_READS", "off") in ("sensitive", "all"):
        await write_audit_entry(store, tenant, action, resource)


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return round(time.time() * 1000)
