"""The part that keeps tenants' sealed credentials."""

from __future__ import annotations

from wopr.store.port.secrets import SecretRow
from wopr.store.sql.secrets import SECRET_COLUMNS, SecretReads, secret_values
from wopr.store.sqlite.part import Part

_PUT = f"INSERT OR REPLACE INTO secrets (tenant, {SECRET_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM secrets WHERE tenant = ? AND name = ?"


class SqliteSecrets(Part, SecretReads):
    """`Secrets` on SQLite."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Keep a credential; one of the same name is replaced."""
        await self._change(_PUT, (tenant, *secret_values(row)))

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Forget a credential; False when there is none of that name."""
        return await self._change(_DELETE, (tenant, name))
