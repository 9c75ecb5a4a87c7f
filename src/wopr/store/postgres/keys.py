"""The part that keeps API keys, by their hash."""

from __future__ import annotations

from functools import partial

from wopr.protocol.errors import Conflict
from wopr.store.port import KeyRow
from wopr.store.postgres.database import Transaction
from wopr.store.postgres.part import Part
from wopr.store.sql.rows import KEY_COLUMNS, key_row, key_values

_INSERT = f"""
INSERT INTO api_keys ({KEY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING RETURNING 1
"""

_BY_HASH = f"SELECT {KEY_COLUMNS} FROM host_key(%s)"

_OF_TENANT = f"""
SELECT {KEY_COLUMNS} FROM api_keys WHERE tenant = %s ORDER BY created_at DESC, key_id DESC
"""

_ALL = f"SELECT {KEY_COLUMNS} FROM host_keys()"

_UPDATE = "SELECT host_update_key(%s, %s, %s, %s)"


class PostgresKeys(Part):
    """`Keys` on PostgreSQL."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        await self._db.run(row.tenant, partial(_put, row=row))

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """The key with that hash."""
        rows = await self._db.ask(_BY_HASH, (key_hash,))
        return key_row(rows[0]) if rows else None

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """A tenant's keys, or all of them; newest first."""
        if tenant is None:
            rows = await self._db.ask(_ALL)
        else:
            rows = await self._db.read(tenant, _OF_TENANT, (tenant,))
        return [key_row(row) for row in rows]

    async def update_key(
        self,
        key_id: str,
        *,
        expires_at: int | None = None,
        revoked_at: int | None = None,
        replaced_by: str | None = None,
    ) -> bool:
        """Set the fields that are given; False when there is no such key."""
        [(count,)] = await self._db.tell(_UPDATE, (key_id, expires_at, revoked_at, replaced_by))
        return bool(count)


async def _put(transaction: Transaction, row: KeyRow) -> None:
    if await transaction.row(_INSERT, key_values(row)) is None:
        raise Conflict("a key with this id or hash is stored already", keyId=row.key_id)
