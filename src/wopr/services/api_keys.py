"""API keys: finds the principal of a key."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from wopr.protocol.errors import Unauthenticated
from wopr.security.api_keys import ConfiguredKey, Principal, hash_key, new_key, scopes_of
from wopr.store.port import KeyRow, Keys

# How long a valid key is cached. A revocation takes effect within this time. It is short because
# open streams must end within a second.
CACHE_MS = 500
CACHE_SIZE = 4096


class Keyring:
    """Finds principals by key hash. Keys from `WOPR_API_KEYS` are only in memory."""

    def __init__(
        self, store: Keys, configured: Iterable[ConfiguredKey], now: Callable[[], int]
    ) -> None:
        self._store = store
        self._now = now
        self._configured = {
            hash_key(key.key): Principal(
                key_id=f"env-{index}",
                tenant=key.tenant,
                role=key.role,
                scopes=scopes_of(key.role),
                is_test=key.is_test,
            )
            for index, key in enumerate(configured, start=1)
        }
        self._cache: OrderedDict[bytes, tuple[int, Principal]] = OrderedDict()

    async def principal(self, key: str) -> Principal:
        """Return the principal of a key. Errors never contain the key."""
        return await self.principal_of_hash(hash_key(key))

    async def principal_of_hash(self, key_hash: bytes) -> Principal:
        """Return the principal of the key with this hash. Raises `Unauthenticated` if invalid."""
        configured = self._configured.get(key_hash)
        if configured is not None:
            return configured
        now = self._now()
        cached = self._cache.get(key_hash)
        if cached is not None and now < cached[0]:
            return cached[1]
        row = await self._store.key_by_hash(key_hash)
        if row is None:
            raise Unauthenticated("the API key is not known")
        principal = _principal(row, now)
        until = now + CACHE_MS if row.expires_at is None else min(now + CACHE_MS, row.expires_at)
        self._cache[key_hash] = (until, principal)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return principal

    def clear_cache(self) -> None:
        """Clear the cache, after another process has added, changed or revoked a key."""
        self._cache.clear()

    async def scopes(self, tenant: str, key_id: str) -> frozenset[str] | None:
        """Return the scopes of a key of this tenant; None if it is unknown or invalid."""
        found = await self._find(tenant, key_id)
        if isinstance(found, Principal):
            return found.scopes
        try:
            return None if found is None else _principal(found, self._now()).scopes
        except Unauthenticated:
            return None

    async def is_test(self, tenant: str, key_id: str) -> bool:
        """Return whether this is a test key of this tenant, valid or not."""
        found = await self._find(tenant, key_id)
        return found is not None and found.is_test

    async def _find(self, tenant: str, key_id: str) -> Principal | KeyRow | None:
        for principal in self._configured.values():
            if (principal.tenant, principal.key_id) == (tenant, key_id):
                return principal
        rows = await self._store.keys(tenant)
        return next((row for row in rows if row.key_id == key_id), None)

    async def first_key(self) -> str | None:
        """Create an admin key when there are no keys yet; otherwise return None."""
        if self._configured or await self._store.keys():
            return None
        key, row = generate_key(
            KeyRow(
                key_id="",
                tenant="default",
                name="first key",
                role="admin",
                scopes=(),
                key_hash=b"",
                created_at=self._now(),
            )
        )
        await self._store.put_key(row)
        return key

    def forget(self, key_hash: bytes) -> None:
        """Remove a changed key from the cache."""
        self._cache.pop(key_hash, None)


def generate_key(template: KeyRow) -> tuple[str, KeyRow]:
    """Create a key and its row from a template without an id and a hash."""
    key = new_key(secrets.token_bytes(32), is_test=template.is_test)
    key_id = f"key_{secrets.token_hex(8)}"
    return key, replace(template, key_id=key_id, key_hash=hash_key(key), replaced_by=None)


def key_state(row: KeyRow, now: int) -> str:
    """Return the state of a key: active, replaced (still valid), expired or revoked."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    return "active" if row.replaced_by is None else "replaced"


def _principal(row: KeyRow, now: int) -> Principal:
    # The time of the revocation is ignored: the clock of the revoking process may be ahead.
    if row.revoked_at is not None:
        raise Unauthenticated("the API key was revoked", code="key_revoked")
    if row.expires_at is not None and row.expires_at <= now:
        raise Unauthenticated("the API key has expired", code="key_expired")
    return Principal(
        key_id=row.key_id,
        tenant=row.tenant,
        role=row.role,
        scopes=scopes_of(row.role) | frozenset(row.scopes),
        is_test=row.is_test,
    )
