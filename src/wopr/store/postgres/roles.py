"""Make the roles that the tables are shared out to."""

from __future__ import annotations

from contextlib import suppress

from psycopg import AsyncConnection, errors, sql

from wopr.protocol.errors import Refused
from wopr.store.postgres.schema_host import CLOCKWORK, SERVICE
from wopr.store.postgres.schema_tokens import CHECKED
from wopr.store.sql.dialect import Row

_MAY_BECOME = """
SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) AND pg_has_role(current_user, oid, 'MEMBER')
"""


async def ensure_roles(connection: AsyncConnection[Row]) -> None:
    """Make the roles of the service and of the functions where they are missing, and join them.

    Raises `Refused` with the words for an administrator when this login may not.
    """
    for role in (SERVICE, CLOCKWORK, CHECKED):
        if await _may_become(connection, role):
            continue
        try:
            await _make(connection, role)
        except errors.InsufficientPrivilege:
            raise Refused(
                f"the database has no role {role} that this login can use; an administrator makes "
                f"it with: CREATE ROLE {role} NOLOGIN; GRANT {role} TO <login>",
                field="db",
            ) from None


async def _may_become(connection: AsyncConnection[Row], role: str) -> bool:
    found = await connection.execute(_MAY_BECOME, ([role],))
    return await found.fetchone() is not None


async def _make(connection: AsyncConnection[Row], role: str) -> None:
    name = sql.Identifier(role)
    # Roles belong to the whole server: another database's host may just have made it.
    with suppress(errors.DuplicateObject, errors.UniqueViolation):
        await connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN NOBYPASSRLS").format(name))
    await connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))
