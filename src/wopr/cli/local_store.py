"""The database itself, for commands that work without a host."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import exit_code_of_status
from wopr.cli.paths import data_dir, database_url
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused, WoprError

if TYPE_CHECKING:
    from pathlib import Path

    from wopr.store.options import StoreOptions
    from wopr.store.port import Store
    from wopr.store.port.audit import AuditDraft

R = TypeVar("R")


def store_options(url: str, directory: Path | None = None) -> StoreOptions:
    """Options to open a database with: the keys that this machine has.

    A host secret is never created here: a command may run on a machine that serves nothing.
    """
    from wopr.runtime.encryption_keys import content_cipher
    from wopr.runtime.host_secret import TENANT_KEY, UnusableHostKey, known_host_secret
    from wopr.security.encryption import UnusableKeys
    from wopr.security.seal import derive
    from wopr.store.open import is_shared
    from wopr.store.options import StoreOptions

    try:
        cipher = content_cipher(os.environ)
        secret = known_host_secret(data_dir(directory), os.environ) if is_shared(url) else None
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


def draft(store: Store, tenant: str, action: str, resource: str, **facts: Json) -> AuditDraft:
    """An audit entry of this command line, to be written in the transaction of what it tells of."""
    from wopr.runtime.audit import Entries, local_operator
    from wopr.security.redact import Redactors

    trail = Entries(store, now_ms, Redactors())
    return trail.draft(tenant, local_operator(), action, resource, **facts)


async def record(store: Store, tenant: str, action: str, resource: str, **facts: Json) -> None:
    """Put on record what was done from this command line."""
    await store.append_audit(draft(store, tenant, action, resource, **facts))


async def record_read(store: Store, tenant: str, action: str, resource: str) -> None:
    """Put a sensitive read from this command line on record, where `WOPR_AUDIT_READS` asks for it."""
    if os.environ.get("WOPR_AUDIT_READS", "off") in ("sensitive", "all"):
        await record(store, tenant, action, resource)


def now_ms() -> int:
    """What time it is, in milliseconds since the epoch."""
    return round(time.time() * 1000)
