"""API keys, by their hash, and encrypted credentials of tenants."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from wopr.protocol.errors import Conflict
from wopr.store.port import KeyRow
from wopr.store.port.credentials import SecretRow
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Parameter, Row, Variants, decode_names
from wopr.store.tables.statements import Operation, execute, query

_KEY_COLUMNS = (
    "key_id, tenant, name, role, scopes, key_hash, created_at, is_test, "
    "expires_at, revoked_at, replaced_by"
)

_INSERT_KEY = f"""
INSERT INTO api_keys ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""

_KEYS_OF_TENANT = f"""
SELECT {_KEY_COLUMNS} FROM api_keys WHERE tenant = ? ORDER BY created_at DESC, key_id DESC
"""

# The tenant of a key is not known before the key is found.
_KEY_BY_HASH = Variants(
    sqlite=f"SELECT {_KEY_COLUMNS} FROM api_keys WHERE key_hash = ?",
    postgres=f"SELECT {_KEY_COLUMNS} FROM host_key(?)",
)

_ALL_KEYS = Variants(
    sqlite=f"SELECT {_KEY_COLUMNS} FROM api_keys ORDER BY created_at DESC, key_id DESC",
    postgres=f"SELECT {_KEY_COLUMNS} FROM host_keys()",
)

_UPDATE_KEY = Variants(
    sqlite="""
UPDATE api_keys SET expires_at = coalesce(?2, expires_at), revoked_at = coalesce(?3, revoked_at),
    replaced_by = coalesce(?4, replaced_by)
WHERE key_id = ?1
""",
    postgres="SELECT host_update_key(?, ?, ?, ?)",
)


class KeyTable(Table):
    """`Keys` in SQL."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        await self._sql.transact(row.tenant, partial(_put_key, row))

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """Return the key with that hash."""
        rows = await self._sql.read_host_few(_KEY_BY_HASH, (key_hash,))
        return _key(rows[0]) if rows else None

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """List the keys of a tenant, or of all tenants; newest first."""
        if tenant is None:
            rows = await self._sql.read_host_many(_ALL_KEYS)
        else:
            rows = await self._sql.read_many(tenant, _KEYS_OF_TENANT, (tenant,))
        return [_key(row) for row in rows]

    async def update_key(
        self,
        key_id: str,
        *,
        expires_at: int | None = None,
        revoked_at: int | None = None,
        replaced_by: str | None = None,
    ) -> bool:
        """Set the fields that are given; False when there is no such key."""
        values = (key_id, expires_at, revoked_at, replaced_by)
        return await self._sql.change_host(_UPDATE_KEY, values) > 0


def _put_key(row: KeyRow) -> Operation[None]:
    if not (yield query(_INSERT_KEY, _key_values(row))):
        raise Conflict("a key with this id or hash is already stored", keyId=row.key_id)


def _key(row: Row) -> KeyRow:
    return KeyRow(
        key_id=row[0],
        tenant=row[1],
        name=row[2],
        role=row[3],
        scopes=decode_names(row[4]),
        key_hash=row[5],
        created_at=row[6],
        is_test=bool(row[7]),
        expires_at=row[8],
        revoked_at=row[9],
        replaced_by=row[10],
    )


def _key_values(row: KeyRow) -> tuple[Parameter, ...]:
    return (
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
    )


_SECRET_COLUMNS: Final = "name, sealed, audience, updated_at"

_SECRET = f"SELECT {_SECRET_COLUMNS} FROM secrets WHERE tenant = ? AND name = ?"
_SECRETS = f"SELECT {_SECRET_COLUMNS} FROM secrets WHERE tenant = ? ORDER BY name"
_PUT_SECRET = f"""
INSERT INTO secrets (tenant, {_SECRET_COLUMNS}) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, name) DO UPDATE SET
    sealed = excluded.sealed, audience = excluded.audience, updated_at = excluded.updated_at
"""
_DELETE_SECRET = "DELETE FROM secrets WHERE tenant = ? AND name = ?"

_audience = msgspec.json.Decoder(tuple[str, ...])


class SecretTable(Table):
    """`Secrets` in SQL."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Store a credential; one of the same name is replaced."""
        await self._sql.change(tenant, _PUT_SECRET, (tenant, *_secret_values(row)))

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """Return the credential of that name."""
        rows = await self._sql.read_few(tenant, _SECRET, (tenant, name))
        return _secret(rows[0]) if rows else None

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """List all credentials of a tenant, by name."""
        return [_secret(row) for row in await self._sql.read_many(tenant, _SECRETS, (tenant,))]

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Delete a credential. Return False if it does not exist."""
        return await self._sql.change(tenant, _DELETE_SECRET, (tenant, name)) > 0


def _secret(row: Row) -> SecretRow:
    return SecretRow(
        name=row[0], sealed=row[1], audience=_audience.decode(row[2]), updated_at=row[3]
    )


def _secret_values(row: SecretRow) -> tuple[Parameter, ...]:
    return row.name, row.sealed, msgspec.json.encode(row.audience), row.updated_at


_FIND = "SELECT 1 FROM ended_sessions WHERE tenant = ? AND session_hash = ?"
_INSERT = """
INSERT INTO ended_sessions (tenant, session_hash, expires_at) VALUES (?, ?, ?)
ON CONFLICT (tenant, session_hash) DO NOTHING
"""
_DELETE_EXPIRED = "DELETE FROM ended_sessions WHERE tenant = ? AND expires_at <= ?"


class SessionTable(Table):
    """`EndedSessions` in SQL."""

    async def end_session(
        self, tenant: str, session_hash: bytes, *, expires_at: int, now: int
    ) -> None:
        """Record that a session was signed out, and delete records of expired sessions."""
        await self._sql.transact(tenant, partial(_end, tenant, session_hash, expires_at, now))

    async def is_session_ended(self, tenant: str, session_hash: bytes) -> bool:
        """Return whether a session was signed out."""
        return bool(await self._sql.read_few(tenant, _FIND, (tenant, session_hash)))


def _end(tenant: str, session_hash: bytes, expires_at: int, now: int) -> Operation[None]:
    yield execute(_DELETE_EXPIRED, (tenant, now))
    yield execute(_INSERT, (tenant, session_hash, expires_at))
