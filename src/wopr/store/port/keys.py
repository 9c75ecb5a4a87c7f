"""API keys, by their hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """An API key: never the key itself, only its hash."""

    key_id: str
    tenant: str
    name: str
    role: str
    scopes: tuple[str, ...]
    key_hash: bytes
    created_at: int
    is_test: bool = False
    expires_at: int | None = None
    revoked_at: int | None = None
    # Set on the old key of a rotation: it stays valid until `expires_at`.
    replaced_by: str | None = None


class Keys(Protocol):
    """API keys. Looking one up by its hash is how a tenant is found, so that call has none."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        ...

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """The key with that hash."""
        ...

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """A tenant's keys, or all of them for the operator's command line; newest first."""
        ...

    async def update_key(
        self,
        key_id: str,
        *,
        expires_at: int | None = None,
        revoked_at: int | None = None,
        replaced_by: str | None = None,
    ) -> bool:
        """Set the fields that are given; False when there is no such key."""
        ...
