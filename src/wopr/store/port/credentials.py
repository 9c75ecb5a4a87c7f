"""API keys, by their hash, and encrypted credentials of tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """An API key. Only the hash of the key is stored."""

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
    """API keys. `key_by_hash` names no tenant, because the key determines the tenant."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        ...

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """Return the key with that hash."""
        ...

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """List the keys of a tenant, or of all tenants; newest first."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """A tenant's credential: its name, where it may be sent, and its encrypted value."""

    name: str
    sealed: bytes
    updated_at: int
    # Hosts and providers that it may be sent to; when empty, model providers only.
    audience: tuple[str, ...] = ()


class Secrets(Protocol):
    """Encrypted credentials, by tenant and name."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Store a credential; one of the same name is replaced."""
        ...

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """Return the credential of that name."""
        ...

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """List all of a tenant's credentials, by name."""
        ...

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Delete a credential. Return False if it does not exist."""
        ...


class EndedSessions(Protocol):
    """Sessions that were signed out before they expired."""

    async def end_session(
        self, tenant: str, session_hash: bytes, *, expires_at: int, now: int
    ) -> None:
        """Record that a session was signed out, and delete records of expired sessions."""
        ...

    async def is_session_ended(self, tenant: str, session_hash: bytes) -> bool:
        """Return whether a session was signed out."""
        ...
