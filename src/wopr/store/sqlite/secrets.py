"""The part that keeps tenants' sealed credentials."""

from __future__ import annotations

from wopr.store.port.secrets import SecretRow
from wopr.store.sql.secrets import SECRET_COLUMNS, secret_row, secret_values
from wopr.store.sqlite.part import Part

_PUT = f"INSERT OR REPLACE INTO secrets (tenant, {SECRET_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
_ONE = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = ? AND name = ?"
_ALL = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = ? ORDER BY name"
_DELETE = "DELETE FROM secrets WHERE tenant = ? AND name = ?"


class SqliteSecrets(Part):
    """`Secrets` on SQLite."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Keep a credential; one of the same name is replaced."""
        await self._change(_PUT, (tenant, *secret_values(row)))

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """The credential of that name."""
        rows = self._reader.near(_ONE, (tenant, name))
        return secret_row(rows[0]) if rows else None

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """All of a tenant's credentials, by name."""
        return [secret_row(row) for row in await self._reader.far(_ALL, (tenant,))]

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Forget a credential; False when there is none of that name."""
        return await self._change(_DELETE, (tenant, name))
