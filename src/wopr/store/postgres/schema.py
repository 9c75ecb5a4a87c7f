"""The migrations, numbered; the table `migrations` says which a database has had.

A migration that was released is never edited: a change is a new entry at the end. One that runs
on tables with rows in them must not keep those who use them waiting: `ADD COLUMN` with a constant
default, new tables and functions in one migration, indexes with `CONCURRENTLY` in one that is
`online`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import anyio
from psycopg import AsyncConnection, errors

from wopr.protocol.errors import Refused, Unavailable
from wopr.store.postgres.roles import ensure_roles
from wopr.store.postgres.schema_append import APPEND, APPEND_EACH
from wopr.store.postgres.schema_code import CODE, CODE_INDEX
from wopr.store.postgres.schema_counts import COUNTS
from wopr.store.postgres.schema_encryption import ENCRYPTION
from wopr.store.postgres.schema_fleet import FLEET, FLEET_PUSHES, FLEET_PUSHES_INDEXES
from wopr.store.postgres.schema_host import SERVICE
from wopr.store.postgres.schema_limits import RUN_COUNTS
from wopr.store.postgres.schema_peers import PEERS
from wopr.store.postgres.schema_reads import LOG_READS, READS
from wopr.store.postgres.schema_recovery import QUARANTINE, QUARANTINE_INDEX
from wopr.store.postgres.schema_runs import DEFINITIONS, RUNS
from wopr.store.postgres.schema_secrets import SECRETS
from wopr.store.postgres.schema_side import AUDIT, FEEDBACK, WEBHOOKS
from wopr.store.postgres.schema_signals import SIGNALS, SIGNALS_INDEX
from wopr.store.postgres.schema_sinks import AUDIT_SINKS
from wopr.store.postgres.schema_timers import FAIR_TIMERS, FAIR_TIMERS_INDEX, TIMERS
from wopr.store.postgres.schema_tokens import (
    CONTENT_WITH_STATISTICS,
    IS_UNSIGNED,
    SIGN_FUNCTIONS,
    TOKENS,
    UNSIGNED_TABLES,
    sign_table,
)
from wopr.store.postgres.schema_traces import TRACES
from wopr.store.postgres.schema_usage import COUNT_OTHER_USAGE, OTHER_USAGE, USAGE
from wopr.store.postgres.security import SECURITY
from wopr.store.sql.dialect import Row

_TABLE = "SELECT to_regclass('wopr.migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM wopr.migrations"
_MAY_MIGRATE = "SELECT has_database_privilege(current_database(), 'CREATE')"
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtext('wopr migrations'))"
_UNLOCK = "SELECT pg_advisory_unlock(hashtext('wopr migrations'))"
_FIRST = (
    "CREATE SCHEMA IF NOT EXISTS wopr",
    f"GRANT USAGE ON SCHEMA wopr TO {SERVICE}",
    """
    CREATE TABLE IF NOT EXISTS wopr.migrations (
        version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()
    )
    """,
)
_APPLIED = "INSERT INTO wopr.migrations (version) VALUES (%s)"
# A half-built index of an attempt that was cut off is in the way of the next attempt.
_INVALID = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'wopr' AND NOT i.indisvalid
"""
# Whoever needs a table longer than this is not pushed aside: the migration gives up and says so.
_LOCK_TIMEOUT = "SET lock_timeout = '5s'"
_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema, in one transaction.

    One that is `online` runs statement by statement instead, as concurrent indexes must; each of
    its statements can be run again after it was cut off.
    """

    statements: tuple[str, ...]
    online: bool = False


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        statements=(
            *RUNS,
            *DEFINITIONS,
            *FEEDBACK,
            *WEBHOOKS,
            *AUDIT,
            *PEERS,
            *APPEND,
            *READS,
            *SECURITY,
        )
    ),
    Migration(statements=FLEET),
    Migration(statements=(*SECRETS, *TRACES)),
    Migration(statements=COUNTS),
    Migration(statements=SIGNALS),
    Migration(statements=SIGNALS_INDEX, online=True),
    Migration(statements=FLEET_PUSHES),
    Migration(statements=FLEET_PUSHES_INDEXES, online=True),
    Migration(statements=CODE),
    Migration(statements=CODE_INDEX, online=True),
    Migration(statements=TIMERS),
    Migration(statements=(*LOG_READS, *APPEND_EACH)),
    Migration(statements=RUN_COUNTS),
    Migration(statements=FAIR_TIMERS),
    Migration(statements=FAIR_TIMERS_INDEX, online=True),
    Migration(statements=TOKENS),
    Migration(statements=QUARANTINE),
    Migration(statements=AUDIT_SINKS),
    Migration(statements=USAGE),
    Migration(statements=ENCRYPTION),
    Migration(statements=OTHER_USAGE),
    Migration(statements=COUNT_OTHER_USAGE, online=True),
    Migration(statements=QUARANTINE_INDEX, online=True),
)


async def schema_version(connection: AsyncConnection[Row]) -> int:
    """How many migrations this database has had."""
    [(is_there,)] = await _rows(connection, _TABLE)
    if not is_there:
        return 0
    [(version,)] = await _rows(connection, _VERSION)
    return int(version)


async def migrate(
    connection: AsyncConnection[Row], migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply what is missing, each migration all or nothing; one process at a time.

    The connection commits each statement by itself. Raises `Refused` for a newer schema than this
    program's, and for a login that may not migrate.
    """
    version = await schema_version(connection)
    [(is_unsigned,)] = await _rows(connection, IS_UNSIGNED)
    if version == len(migrations) and not is_unsigned:
        return
    _refuse_newer(version, migrations)
    await _require_rights(connection)
    await _lock(connection)
    try:
        await _apply(connection, migrations)
    finally:
        with anyio.CancelScope(shield=True):
            await connection.execute(_UNLOCK)


def _refuse_newer(version: int, migrations: Sequence[Migration]) -> None:
    if version > len(migrations):
        raise Refused(
            f"the database has schema {version}, this program knows up to {len(migrations)}: "
            "use the version of wopr that wrote it, or a newer one",
            field="db",
        )


async def _require_rights(connection: AsyncConnection[Row]) -> None:
    [(may,)] = await _rows(connection, _MAY_MIGRATE)
    if not may:
        raise Refused(
            "the database needs a migration, and this login may not make tables: run "
            "`wopr doctor --offline` once with the URL of the database's owner",
            field="db",
        )


async def _lock(connection: AsyncConnection[Row]) -> None:
    # Asking again and again, not waiting inside the database: an index that is built concurrently
    # would wait for those who wait here.
    with anyio.move_on_after(_LONGEST_WAIT_SECONDS):
        while True:
            [(is_ours,)] = await _rows(connection, _TRY_LOCK)
            if is_ours:
                return
            await anyio.sleep(_WAIT_SECONDS)
    raise Unavailable("another process has been migrating the database for too long")


async def _apply(connection: AsyncConnection[Row], migrations: Sequence[Migration]) -> None:
    await connection.execute(_LOCK_TIMEOUT)
    # Read again under the lock: another process may have migrated in between.
    done = await schema_version(connection)
    await ensure_roles(connection)
    if done == 0:
        for statement in _FIRST:
            await _execute(connection, statement)
    await connection.execute("SET search_path = wopr")
    for version, migration in enumerate(migrations[done:], done + 1):
        await _drop_half_built(connection)
        whole = nullcontext() if migration.online else connection.transaction()
        async with whole:
            for statement in migration.statements:
                await _execute(connection, statement)
            await connection.execute(_APPLIED, (version,))
    [(is_unsigned,)] = await _rows(connection, IS_UNSIGNED)
    if is_unsigned:
        await _sign(connection)


async def _sign(connection: AsyncConnection[Row]) -> None:
    """Make every policy, and every function that crosses tenants, check a token.

    The planner's statistics of content, which no policy hides, are deleted and not made again.
    """
    for statement in SIGN_FUNCTIONS:
        await _execute(connection, statement)
    for (table,) in await _rows(connection, UNSIGNED_TABLES):
        # Each table by itself: all of them at once would be locked for too long.
        async with connection.transaction():
            for statement in sign_table(table):
                await _execute(connection, statement)
    for (statement,) in await _rows(connection, CONTENT_WITH_STATISTICS):
        await _execute(connection, statement)


async def _drop_half_built(connection: AsyncConnection[Row]) -> None:
    for (name,) in await _rows(connection, _INVALID):
        await _execute(connection, f'DROP INDEX CONCURRENTLY IF EXISTS wopr."{name}"')


async def _execute(connection: AsyncConnection[Row], statement: str) -> None:
    try:
        await connection.execute(statement.encode())
    except errors.LockNotAvailable:
        raise Unavailable(
            "the migration waited too long for a table that is in use: try again later"
        ) from None


async def _rows(connection: AsyncConnection[Row], sql: str) -> list[Row]:
    found = await connection.execute(sql.encode())
    return await found.fetchall()
