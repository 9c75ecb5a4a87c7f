"""API keys at work: who a presented key speaks for."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from wopr.protocol.errors import Unauthenticated
from wopr.security.keys import ConfiguredKey, Principal, hash_key, new_key, scopes_of
from wopr.store.port import KeyRow, Keys

# A key that was looked up is trusted this long; so long may a revocation take to be noticed. Open
# streams, which are checked from time to time, must end within a second.
TRUSTED_MS = 500
KEPT = 4096


class Keyring:
    """Finds principals by key hash; keys of the environment live only in memory."""

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
        self._trusted: OrderedDict[bytes, tuple[int, Principal]] = OrderedDict()

    async def principal(self, key: str) -> Principal:
        """The principal of a key. The error never says what was presented."""
        return await self.holder(hash_key(key))

    async def holder(self, key_hash: bytes) -> Principal:
        """The principal of the key with that hash, as long as the key is valid."""
        configured = self._configured.get(key_hash)
        if configured is not None:
            return configured
        now = self._now()
        trusted = self._trusted.get(key_hash)
        if trusted is not None and now < trusted[0]:
            return trusted[1]
        row = await self._store.key_by_hash(key_hash)
        if row is None:
            raise Unauthenticated("the API key is not known")
        principal = _principal(row, now)
        until = (
            now + TRUSTED_MS if row.expires_at is None else min(now + TRUSTED_MS, row.expires_at)
        )
        self._trusted[key_hash] = (until, principal)
        while len(self._trusted) > KEPT:
            self._trusted.popitem(last=False)
        return principal

    def forget_all(self) -> None:
        """Hear that another process made, changed or revoked a key."""
        self._trusted.clear()

    async def scopes(self, tenant: str, key_id: str) -> frozenset[str] | None:
        """What a key of this tenant may do now; None for one that is unknown or no longer valid."""
        found = await self._find(tenant, key_id)
        if isinstance(found, Principal):
            return found.scopes
        try:
            return None if found is None else _principal(found, self._now()).scopes
        except Unauthenticated:
            return None

    async def is_test(self, tenant: str, key_id: str) -> bool:
        """Tell whether this is a key for tests of this tenant, valid or not."""
        found = await self._find(tenant, key_id)
        return found is not None and found.is_test

    async def _find(self, tenant: str, key_id: str) -> Principal | KeyRow | None:
        for principal in self._configured.values():
            if (principal.tenant, principal.key_id) == (tenant, key_id):
                return principal
        rows = await self._store.keys(tenant)
        return next((row for row in rows if row.key_id == key_id), None)

    async def first_key(self) -> str | None:
        """Make an admin key for an empty keyring; None when there are keys already."""
        if self._configured or await self._store.keys():
            return None
        key, row = mint(
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
        """Look a key up anew when it is next presented: it has just been changed."""
        self._trusted.pop(key_hash, None)


def mint(template: KeyRow) -> tuple[str, KeyRow]:
    """Make a new key and its row from a row that says all but the identity."""
    key = new_key(secrets.token_bytes(32), is_test=template.is_test)
    key_id = f"key_{secrets.token_hex(8)}"
    return key, replace(template, key_id=key_id, key_hash=hash_key(key), replaced_by=None)


def key_state(row: KeyRow, now: int) -> str:
    """Whether a key can be used: active, replaced but still valid, expired or revoked."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    return "active" if row.replaced_by is None else "replaced"


def _principal(row: KeyRow, now: int) -> Principal:
    # At any time: the clock of the process that revoked it may be ahead of this one.
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
