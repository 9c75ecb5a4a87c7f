"""The part that keeps tenants' sealed credentials."""

from __future__ import annotations

from wopr.store.port.secrets import SecretRow
from wopr.store.postgres.part import Part
from wopr.store.sql.secrets import SECRET_COLUMNS, SecretReads, secret_values

_PUT = f"""
INSERT INTO secrets (tenant, {SECRET_COLUMNS}) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, name) DO UPDATE SET
    sealed = excluded.sealed, audience = excluded.audience, updated_at = excluded.updated_at
"""
_DELETE = "DELETE FROM secrets WHERE tenant = %s AND name = %s"


class PostgresSecrets(Part, SecretReads):
    """`Secrets` on PostgreSQL."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Keep a credential; one of the same name is replaced."""
        await self._db.change(tenant, _PUT, (tenant, *secret_values(row)))

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Forget a credential; False when there is none of that name."""
        return await self._db.change(tenant, _DELETE, (tenant, name)) > 0
