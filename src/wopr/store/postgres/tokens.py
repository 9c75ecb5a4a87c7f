"""Signed tokens, with which a process proves to the database which tenant a transaction is for.

Every login can set a session variable, so the database does not trust a plain tenant name. It
trusts a token that is signed with a key of the host process. The key is also in a table that only
the owner can read. A token is valid for one connection, and it expires.

A login that owns the tables stores the key of its host. A login of the service cannot read the
table. It signs with the key of its host, which an owner must have stored before.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from psycopg import AsyncConnection

from wopr.protocol.errors import Refused
from wopr.store.postgres.texts import escape
from wopr.store.tables.dialect import Row

# How long a token is valid. A process reuses a token until half of this time has passed. The other
# half covers the longest wait in a queue of the server, and small differences of the clocks.
LIFETIME_SECONDS: Final = 900

# The first character of a subject.
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
    """A key that signs tokens with HMAC-SHA256, as the two padded keys that the table stores."""

    def __init__(self, inner: bytes, outer: bytes) -> None:
        self.inner = inner
        self.outer = outer
        self.key_id = hashlib.sha256(b"wopr token key" + inner).hexdigest()[:_ID_CHARACTERS]
        self._inner = hashlib.sha256(inner)
        self._outer = hashlib.sha256(outer)

    @classmethod
    def from_bytes(cls, key: bytes) -> TokenKey:
        """Prepare a key of at most 64 bytes."""
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        return cls(bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded))

    @classmethod
    def random(cls) -> TokenKey:
        """Generate a random key."""
        return cls.from_bytes(secrets.token_bytes(32))

    def token(self, pid: int, expires: int, subject: str) -> str:
        """Sign a subject for the server process `pid`, valid until `expires` of its clock."""
        head = f"{self.key_id}{expires:010d}"
        inner, outer = self._inner.copy(), self._outer.copy()
        # The driver sends the text escaped.
        inner.update(f"{pid}:{head}{escape(subject)}".encode())
        outer.update(inner.digest())
        return f"{outer.hexdigest()}{head}{subject}"


async def ensure_token_key(
    connection: AsyncConnection[Row], own: bytes | None
) -> tuple[TokenKey, bool]:
    """Return the key that signs tokens, and whether the login owns the tables.

    An owner stores the key `own`. If it is None, the owner uses the oldest stored key, or stores a
    random key. Raises `Refused`
    for a login of the service if `own` is None.
    """
    found = await connection.execute(_MAY_WRITE)
    owns_tables = await found.fetchone() == (True,)
    if not owns_tables:
        if own is None:
            raise unknown_key_error()
        return TokenKey.from_bytes(own), False
    if own is None:
        oldest = await (await connection.execute(_OLDEST)).fetchone()
        if oldest is not None:
            return TokenKey(bytes(oldest[0]), bytes(oldest[1])), True
    key = TokenKey.random() if own is None else TokenKey.from_bytes(own)
    await connection.execute(_STORE, (key.key_id, key.inner, key.outer))
    return key, True


def unknown_key_error() -> Refused:
    """Return the error for a process whose key the database does not know."""
    return Refused(
        "the database does not know the host key of this process and refuses its tokens: set "
        "WOPR_HOST_KEY (or the data directory with host.key) to the key of the other processes; "
        "if the key is new, run `wopr doctor --offline` once with the URL of the database's "
        "owner and this WOPR_HOST_KEY",
        field="db",
    )
