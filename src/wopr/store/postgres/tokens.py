"""Signed tokens: how a process proves to the database which tenant a transaction is for.

A session variable can be set by every login, so the database does not believe a plain tenant name.
It believes a token that is signed with a key that the host process and an owner-only table know.
A token is bound to one connection of the server and expires.

A login that owns the tables stores the key of its host. A login of the service cannot read the table:
it signs with the key of its own host, which an owner must have stored.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from psycopg import AsyncConnection

from wopr.protocol.errors import Refused
from wopr.store.postgres.texts import escaped
from wopr.store.sql.dialect import Row

# How long a token is valid. A process uses a token again until half of this time has passed. The
# other half covers the longest wait in a queue of the server, and small changes of either clock.
LIFETIME_SECONDS: Final = 900

# What the first character after the expiry says.
TENANT: Final = "t"
HOST: Final = "h"

_BLOCK_BYTES: Final = 64
_ID_CHARACTERS: Final = 8

_MAY_WRITE = "SELECT has_table_privilege('wopr.token_keys', 'INSERT')"
_STORE = """
INSERT INTO wopr.token_keys (key_id, inner_key, outer_key) VALUES (%s, %s, %s)
ON CONFLICT (key_id) DO NOTHING
"""
_OLDEST = "SELECT inner_key, outer_key FROM wopr.token_keys ORDER BY created_at, key_id LIMIT 1"


class TokenKey:
    """A key that signs tokens: HMAC-SHA256, as two padded keys, which is how the table holds it."""

    def __init__(self, inner: bytes, outer: bytes) -> None:
        self.inner = inner
        self.outer = outer
        self.key_id = hashlib.sha256(b"wopr token key" + inner).hexdigest()[:_ID_CHARACTERS]
        self._inner = hashlib.sha256(inner)
        self._outer = hashlib.sha256(outer)

    @classmethod
    def of(cls, key: bytes) -> TokenKey:
        """Prepare a key of at most 64 bytes."""
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        return cls(bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded))

    @classmethod
    def random(cls) -> TokenKey:
        """Make a key that belongs to no host."""
        return cls.of(secrets.token_bytes(32))

    def token(self, pid: int, expires: int, subject: str) -> str:
        """Sign a subject for the server process `pid`, valid until `expires` of its clock."""
        head = f"{self.key_id}{expires:010d}"
        inner, outer = self._inner.copy(), self._outer.copy()
        # The database sees the text as the driver sends it, which is escaped.
        inner.update(f"{pid}:{head}{escaped(subject)}".encode())
        outer.update(inner.digest())
        return f"{outer.hexdigest()}{head}{subject}"


async def token_key(connection: AsyncConnection[Row], own: bytes | None) -> tuple[TokenKey, bool]:
    """Return the key to sign tenants with, and whether the login owns the tables.

    Without a key of its own an owner uses the oldest stored key, or stores a random one. Raises
    `Refused` for a login of the service without a key of its own.
    """
    found = await connection.execute(_MAY_WRITE)
    owns_tables = await found.fetchone() == (True,)
    if not owns_tables:
        if own is None:
            raise unknown_key()
        return TokenKey.of(own), False
    if own is None:
        oldest = await (await connection.execute(_OLDEST)).fetchone()
        if oldest is not None:
            return TokenKey(bytes(oldest[0]), bytes(oldest[1])), True
    key = TokenKey.random() if own is None else TokenKey.of(own)
    await connection.execute(_STORE, (key.key_id, key.inner, key.outer))
    return key, True


def unknown_key() -> Refused:
    """The refusal of a process whose key the database does not know."""
    return Refused(
        "the database does not know the host key of this process, so it shows it no tenant: set "
        "WOPR_HOST_KEY (or the data directory with host.key) to the key of the other processes; "
        "where the key is new, run `wopr doctor --offline` once with the URL of the database's "
        "owner and this WOPR_HOST_KEY",
        field="db",
    )
