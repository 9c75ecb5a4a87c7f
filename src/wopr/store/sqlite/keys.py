"""The part that keeps API keys, by their hash."""

from __future__ import annotations

import sqlite3
from functools import partial

import msgspec

from wopr.protocol.errors import Conflict
from wopr.store.port import KeyRow
from wopr.store.sqlite.part import Part
from wopr.store.sqlite.reader import Row

_COLUMNS = (
    "key_id, tenant, name, role, scopes, key_hash, created_at, is_test, "
    "expires_at, revoked_at, replaced_by"
)

_INSERT = f"""
INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""

_BY_HASH = f"SELECT {_COLUMNS} FROM api_keys WHERE key_hash = ?"

_OF_TENANT = f"""
SELECT {_COLUMNS} FROM api_keys WHERE tenant = ? ORDER BY created_at DESC, key_id DESC
"""

_ALL = f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at DESC, key_id DESC"

_UPDATE = """
UPDATE api_keys SET expires_at = coalesce(?, expires_at), revoked_at = coalesce(?, revoked_at),
    replaced_by = coalesce(?, replaced_by)
WHERE key_id = ?
"""

_scopes = msgspec.json.Decoder(tuple[str, ...])


class SqliteKeys(Part):
    """`Keys` on SQLite."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        await self._writer.submit(partial(_put, row=row))

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """The key with that hash."""
        rows = self._reader.near(_BY_HASH, (key_hash,))
        return _key_row(rows[0]) if rows else None

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """A tenant's keys, or all of them; newest first."""
        if tenant is None:
            rows = await self._reader.far(_ALL)
        else:
            rows = await self._reader.far(_OF_TENANT, (tenant,))
        return [_key_row(row) for row in rows]

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
    stored = connection.execute(
        _INSERT,
        (
            row.key_id,
            row.tenant,
            row.name,
            row.role,
            msgspec.json.encode(row.scopes),
            row.key_hash,
            row.created_at,
            row.is_test,
            row.expires_at,
            row.revoked_at,
            row.replaced_by,
        ),
    )
    if not stored.rowcount:
        raise Conflict("a key with this id or hash is stored already", keyId=row.key_id)


def _key_row(row: Row) -> KeyRow:
    return KeyRow(
        key_id=row[0],
        tenant=row[1],
        name=row[2],
        role=row[3],
        scopes=_scopes.decode(row[4]),
        key_hash=row[5],
        created_at=row[6],
        is_test=bool(row[7]),
        expires_at=row[8],
        revoked_at=row[9],
        replaced_by=row[10],
    )
