"""The database itself, for commands that work without a host."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import exit_code_of_status
from wopr.cli.paths import database_url
from wopr.protocol.documents import Json
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.store.port import Store

R = TypeVar("R")


def with_store(db: str | None, work: Callable[[Store], Awaitable[R]]) -> R:
    """Open the database, do the work and close it."""
    import anyio

    from wopr.store.open import open_store

    async def use() -> R:
        store = await open_store(database_url(db))
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return anyio.run(use)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None


async def record(store: Store, tenant: str, action: str, resource: str, **facts: Json) -> None:
    """Put on record what was done from this command line."""
    from wopr.runtime.audit import Entries, local_operator
    from wopr.security.redact import Redactor

    trail = Entries(store, now_ms, Redactor())
    await trail.record(tenant, local_operator(), action, resource, **facts)


def now_ms() -> int:
    """What time it is, in milliseconds since the epoch."""
    return round(time.time() * 1000)
