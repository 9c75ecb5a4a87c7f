"""Migrations of the PostgreSQL schema, its roles, and the checks of tokens in its policies.

The files `schema/NNNN_name.sql` are the migrations; the table `migrations` has the number of each
applied migration. A migration of several files has `NNNN_NN_name.sql`. A released migration is
never edited: a change is a new file at the end. A migration must not block the users of tables with
rows: use `ADD COLUMN` with a constant default, new tables and new functions; create indexes with
`CONCURRENTLY` in a file `NNNN_name.online.sql`.

A migration may create tables and functions without a check of tokens, in the form of the migrations
before 0016. After the migrations, the functions here add the check where it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

import anyio
from procrastinate.schema import SchemaManager
from psycopg import AsyncConnection, errors, sql

from wopr.protocol.errors import Refused, Unavailable
from wopr.store.postgres.schema_constants import HOST_ROLE, SERVICE_ROLE, TENANT_ROLE
from wopr.store.tables.dialect import Row

_TABLE = "SELECT to_regclass('wopr.migrations') IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM wopr.migrations"
_MAY_MIGRATE = "SELECT has_database_privilege(current_database(), 'CREATE')"
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtext('wopr migrations'))"
_UNLOCK = "SELECT pg_advisory_unlock(hashtext('wopr migrations'))"
_CREATE_SCHEMA = f"""
CREATE SCHEMA IF NOT EXISTS wopr;
GRANT USAGE ON SCHEMA wopr TO {SERVICE_ROLE};
CREATE TABLE IF NOT EXISTS wopr.migrations (
    version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()
);
"""
_APPLIED = "INSERT INTO wopr.migrations (version) VALUES (%s)"
# An attempt that was interrupted may leave a half-built index, which blocks the next attempt.
_INVALID_INDEXES = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'wopr' AND NOT i.indisvalid
"""
# A migration gives up when another transaction uses a table for longer than this.
_LOCK_TIMEOUT = "SET lock_timeout = '5s'"
_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema, in one transaction.

    The scripts of an `online` migration are single statements, each in its own transaction, because
    a concurrent index build requires it. An interrupted migration runs again, so each can run
    twice.
    """

    name: str
    scripts: tuple[str, ...]
    online: bool = False


def _load() -> tuple[Migration, ...]:
    scripts = sorted(
        (file.name, file.read_text())
        for file in (files("wopr.store.postgres") / "schema").iterdir()
        if file.name[0].isdigit()
    )
    found = [
        _migration(list(group)) for _, group in groupby(scripts, key=lambda script: script[0][:4])
    ]
    # The first migration grants rights on the tables of Procrastinate and uses them in functions.
    queue = SchemaManager.get_schema()
    first = Migration(name="first", scripts=(queue, *found[0].scripts))
    return (first, *found[1:])


def _migration(scripts: list[tuple[str, str]]) -> Migration:
    name = scripts[0][0].removesuffix(".sql").partition("_")[2]
    if name.endswith(".online"):
        [(_, script)] = scripts
        statements = (each.strip() for each in script.split(";\n"))
        return Migration(
            name=name.removesuffix(".online"),
            scripts=tuple(statement for statement in statements if statement),
            online=True,
        )
    return Migration(name=name, scripts=tuple(script for _, script in scripts))


MIGRATIONS = _load()


async def schema_version(connection: AsyncConnection[Row]) -> int:
    """Return the number of migrations that this database has."""
    [(exists,)] = await _rows(connection, _TABLE)
    if not exists:
        return 0
    [(version,)] = await _rows(connection, _VERSION)
    return int(version)


async def migrate(
    connection: AsyncConnection[Row], migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply the missing migrations, each in one transaction, in one process at a time.

    The connection must be in autocommit mode. Raises `Refused` if the schema is newer than this
    program or the login may not migrate, and `Unavailable` if a table is locked for too long.
    """
    version = await schema_version(connection)
    if version == len(migrations) and not await _lacks_token_checks(connection):
        return
    _refuse_newer(version, migrations)
    await _require_rights(connection)
    await _lock(connection)
    try:
        await _apply(connection, migrations)
    except errors.LockNotAvailable:
        raise Unavailable(
            "the migration waited too long for a table that is in use: try again later"
        ) from None
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
            "the database needs a migration, and this login may not create tables: run "
            "`wopr doctor --offline` once with the URL of the database's owner",
            field="db",
        )


async def _lock(connection: AsyncConnection[Row]) -> None:
    # Poll instead of waiting inside the database: a concurrent index build waits for all
    # transactions, also for a transaction that waits for this lock.
    with anyio.move_on_after(_LONGEST_WAIT_SECONDS):
        while True:
            [(is_acquired,)] = await _rows(connection, _TRY_LOCK)
            if is_acquired:
                return
            await anyio.sleep(_WAIT_SECONDS)
    raise Unavailable("another process has been migrating the database for too long")


async def _apply(connection: AsyncConnection[Row], migrations: Sequence[Migration]) -> None:
    await connection.execute(_LOCK_TIMEOUT)
    # Read again under the lock: another process may have migrated in between.
    done = await schema_version(connection)
    await _ensure_roles(connection)
    if done == 0:
        await connection.execute(_CREATE_SCHEMA.encode())
    await connection.execute("SET search_path = wopr")
    for version, migration in enumerate(migrations[done:], done + 1):
        await _drop_invalid_indexes(connection)
        transaction = nullcontext() if migration.online else connection.transaction()
        async with transaction:
            for script in migration.scripts:
                await connection.execute(script.encode())
            await connection.execute(_APPLIED, (version,))
    if await _lacks_token_checks(connection):
        await _add_token_checks(connection)


async def _drop_invalid_indexes(connection: AsyncConnection[Row]) -> None:
    for (name,) in await _rows(connection, _INVALID_INDEXES):
        await connection.execute(f'DROP INDEX CONCURRENTLY IF EXISTS wopr."{name}"'.encode())


async def _rows(connection: AsyncConnection[Row], statement: str) -> list[Row]:
    found = await connection.execute(statement.encode())
    return await found.fetchall()


_MAY_USE_ROLE = """
SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) AND pg_has_role(current_user, oid, 'MEMBER')
"""


async def _ensure_roles(connection: AsyncConnection[Row]) -> None:
    """Create the missing roles of the service and of the functions, and grant them to this login.

    Raises `Refused` with the statement for an administrator if this login may not create roles.
    """
    for role in (SERVICE_ROLE, HOST_ROLE, TENANT_ROLE):
        if await _may_use_role(connection, role):
            continue
        try:
            await _create_role(connection, role)
        except errors.InsufficientPrivilege:
            raise Refused(
                f"the database has no role {role} that this login can use; an administrator "
                f"creates it with: CREATE ROLE {role} NOLOGIN; GRANT {role} TO <login>",
                field="db",
            ) from None


async def _may_use_role(connection: AsyncConnection[Row], role: str) -> bool:
    found = await connection.execute(_MAY_USE_ROLE, ([role],))
    return await found.fetchone() is not None


async def _create_role(connection: AsyncConnection[Row], role: str) -> None:
    name = sql.Identifier(role)
    # Roles belong to the whole server, so the host of another database may just have created it.
    with suppress(errors.DuplicateObject, errors.UniqueViolation):
        await connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN NOBYPASSRLS").format(name))
    await connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))


_UNSIGNED_TABLES = """
SELECT tablename FROM pg_policies
WHERE schemaname = 'wopr' AND policyname = 'own_rows' AND roles = '{public}' ORDER BY 1
"""
_UNSIGNED_FUNCTIONS = """
SELECT 1 FROM pg_proc p
WHERE p.pronamespace = to_regnamespace('wopr') AND starts_with(p.proname, 'host_')
AND p.prosecdef AND position('require_token' IN p.prosrc) = 0
"""
# Columns with content of tenants, for which the planner must not collect statistics. Every login
# can read estimates from `EXPLAIN`, and row-level security does not apply to statistics: estimates
# for many values reveal the stored values. No condition needs these statistics. A change of the
# type to the same type deletes existing statistics. PostgreSQL does not allow that for a column
# that a trigger names; the only such column is the encrypted secret of a webhook.
_CONTENT_WITH_STATISTICS = """
SELECT format('ALTER TABLE %s ', c.oid::regclass) || string_agg(format(
    'ALTER COLUMN %1$I TYPE %2$s, ALTER COLUMN %1$I SET STATISTICS 0',
    a.attname, format_type(a.atttypid, a.atttypmod)
), ', ' ORDER BY a.attnum)
FROM pg_policies p
JOIN pg_class c ON c.relname = p.tablename AND c.relnamespace = to_regnamespace('wopr')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.schemaname = 'wopr' AND p.policyname = 'own_rows' AND a.attstattarget IS DISTINCT FROM 0
    AND (a.atttypid IN ('bytea'::regtype, 'text'::regtype) OR (c.relname, a.attname) IN (
        ('run_tags', 'tag'), ('run_labels', 'label'), ('memory_tags', 'tag'), ('secrets', 'name'),
        ('api_keys', 'name')
    ))
    AND NOT EXISTS (
        SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_trigger'::regclass
        AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
    )
GROUP BY c.oid ORDER BY c.oid
"""
_IS_UNSIGNED = f"""
SELECT to_regprocedure('wopr.signed_tenant()') IS NOT NULL AND (
    EXISTS ({_UNSIGNED_TABLES}) OR EXISTS ({_UNSIGNED_FUNCTIONS})
    OR EXISTS ({_CONTENT_WITH_STATISTICS})
)
"""
_TENANT_OF_TOKEN = "tenant = (SELECT signed_tenant())"
_TENANT_OF_SETTING = "tenant = nullif(current_setting('wopr.tenant', true), '')"


async def _lacks_token_checks(connection: AsyncConnection[Row]) -> bool:
    """Return whether a table or function of a migrated database does not check tokens yet."""
    [(is_unsigned,)] = await _rows(connection, _IS_UNSIGNED)
    return bool(is_unsigned)


async def _add_token_checks(connection: AsyncConnection[Row]) -> None:
    """Add a check of tokens to every policy, and to every function that crosses tenants.

    Also deletes the planner's statistics of content, to which policies do not apply.
    """
    functions = files("wopr.store.postgres") / "schema" / "sign_functions.sql"
    await connection.execute(functions.read_bytes())
    for (table,) in await _rows(connection, _UNSIGNED_TABLES):
        # One transaction for each table: a single one would lock all tables for too long.
        async with connection.transaction():
            await connection.execute(
                f"ALTER POLICY own_rows ON {table} TO {SERVICE_ROLE} "
                f"USING ({_TENANT_OF_TOKEN}) WITH CHECK ({_TENANT_OF_TOKEN})".encode()
            )
            await connection.execute(
                f"CREATE POLICY checked_rows ON {table} TO {TENANT_ROLE} "
                f"USING ({_TENANT_OF_SETTING}) WITH CHECK ({_TENANT_OF_SETTING})".encode()
            )
    for (statement,) in await _rows(connection, _CONTENT_WITH_STATISTICS):
        await connection.execute(statement.encode())
