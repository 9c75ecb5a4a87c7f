"""The part that keeps tenants' sealed credentials."""

from __future__ import annotations

from wopr.store.port.secrets import SecretRow
from wopr.store.postgres.part import Part
from wopr.store.sql.secrets import SECRET_COLUMNS, secret_row, secret_values

_PUT = f"""
INSERT INTO secrets (tenant, {SECRET_COLUMNS}) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, name) DO UPDATE SET
    sealed = excluded.sealed, audience = excluded.audience, updated_at = excluded.updated_at
"""
_ONE = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = %s AND name = %s"
_ALL = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = %s ORDER BY name"
_DELETE = "DELETE FROM secrets WHERE tenant = %s AND name = %s"


class PostgresSecrets(Part):
    """`Secrets` on PostgreSQL."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Keep a credential; one of the same name is replaced."""
        await self._db.change(tenant, _PUT, (tenant, *secret_values(row)))

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """The credential of that name."""
        rows = await self._db.read(tenant, _ONE, (tenant, name))
        return secret_row(rows[0]) if rows else None

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """All of a tenant's credentials, by name."""
        return [secret_row(row) for row in await self._db.read(tenant, _ALL, (tenant,))]

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Forget a credential; False when there is none of that name."""
        return await self._db.change(tenant, _DELETE, (tenant, name)) > 0
