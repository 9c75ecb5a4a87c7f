"""Credentials that tenants keep with the host, sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """A tenant's credential: its name, where it may be sent, and its sealed value."""

    name: str
    sealed: bytes
    updated_at: int
    # Hosts and providers that it is for; without any, model providers only.
    audience: tuple[str, ...] = ()


class Secrets(Protocol):
    """Sealed credentials by tenant and name."""

    async def put_secret(self, tenant: str, row: SecretRow) -> None:
        """Keep a credential; one of the same name is replaced."""
        ...

    async def secret(self, tenant: str, name: str) -> SecretRow | None:
        """The credential of that name."""
        ...

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """All of a tenant's credentials, by name."""
        ...

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """Forget a credential; False when there is none of that name."""
        ...
