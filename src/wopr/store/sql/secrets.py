"""Rows of tenants' sealed credentials, read and written."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.store.port.secrets import SecretRow
from wopr.store.sql.dialect import Parameter, Row
from wopr.store.sql.reads import Reads

SECRET_COLUMNS: Final = "name, sealed, audience, updated_at"

_ONE = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = ? AND name = ?"
_ALL = f"SELECT {SECRET_COLUMNS} FROM secrets WHERE tenant = ? ORDER BY name"

_audience = msgspec.json.Decoder(tuple[str, ...])


class SecretReads(Reads):
    """The reads of `Secrets`."""

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """The credential of that name."""
        rows = await self._read_few(tenant, _ONE, (tenant, name))
        return secret_row(rows[0]) if rows else None

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """All of a tenant's credentials, by name."""
        return [secret_row(row) for row in await self._read_many(tenant, _ALL, (tenant,))]


def secret_row(row: Row) -> SecretRow:
    """A row of `SECRET_COLUMNS`."""
    return SecretRow(
        name=row[0], sealed=row[1], audience=_audience.decode(row[2]), updated_at=row[3]
    )


def secret_values(row: SecretRow) -> tuple[Parameter, ...]:
    """The values of `SECRET_COLUMNS`."""
    return row.name, row.sealed, msgspec.json.encode(row.audience), row.updated_at
