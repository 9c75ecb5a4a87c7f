"""The part that keeps API keys, by their hash."""

from __future__ import annotations

import sqlite3
from functools import partial

from wopr.protocol.errors import Conflict
from wopr.store.port import KeyRow
from wopr.store.sql.rows import KEY_COLUMNS, key_row, key_values
from wopr.store.sqlite.part import Part

_INSERT = f"""
INSERT INTO api_keys ({KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""

_BY_HASH = f"SELECT {KEY_COLUMNS} FROM api_keys WHERE key_hash = ?"

_OF_TENANT = f"""
SELECT {KEY_COLUMNS} FROM api_keys WHERE tenant = ? ORDER BY created_at DESC, key_id DESC
"""

_ALL = f"SELECT {KEY_COLUMNS} FROM api_keys ORDER BY created_at DESC, key_id DESC"

_UPDATE = """
UPDATE api_keys SET expires_at = coalesce(?, expires_at), revoked_at = coalesce(?, revoked_at),
    replaced_by = coalesce(?, replaced_by)
WHERE key_id = ?
"""


class SqliteKeys(Part):
    """`Keys` on SQLite."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        await self._writer.submit(partial(_put, row=row))

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """The key with that hash."""
        rows = self._reader.near(_BY_HASH, (key_hash,))
        return key_row(rows[0]) if rows else None

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """A tenant's keys, or all of them; newest first."""
        if tenant is None:
            rows = await self._reader.far(_ALL)
        else:
            rows = await self._reader.far(_OF_TENANT, (tenant,))
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
        return await self._change(_UPDATE, (expires_at, revoked_at, replaced_by, key_id))


def _put(connection: sqlite3.Connection, row: KeyRow) -> None:
    stored = connection.execute(_INSERT, key_values(row))
    if not stored.rowcount:
        raise Conflict("a key with this id or hash is stored already", keyId=row.key_id)
