"""API keys: their form, their hash, the roles they carry and the scopes of each role."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

LIVE_KEY_PREFIX: Final = "wopr_live_"
TEST_KEY_PREFIX: Final = "wopr_test_"
MIN_KEY_BYTES: Final = 32
# Of a key that the operator chose.
MIN_KEY_LENGTH: Final = 16

_TEST_PREFIXES: Final = (TEST_KEY_PREFIX, "test_", "test-")

_READS: Final = frozenset({"manifest:read", "runs:read", "artifacts:read", "fleet:read"})
_WORKS: Final = _READS | {"runs:create", "runs:cancel", "runs:annotate", "webhooks:manage"}

# No scope implies another. `conformance:author`, `annotations:actor` and `quotas:manage` are in no
# role: an operator grants them by name.
ROLES: Final[dict[str, frozenset[str]]] = {
    "admin": _WORKS
    | {
        "approvals:respond",
        "audit:read",
        "host:read",
        "workflows:write",
        "agents:write",
        "fleet:ingest",
        "keys:manage",
    },
    "operator": _WORKS | {"approvals:respond", "audit:read", "host:read"},
    "developer": _WORKS | {"workflows:write", "agents:write"},
    "reviewer": _READS | {"runs:annotate", "approvals:respond"},
    "viewer": _READS,
    "ingest": frozenset({"fleet:ingest"}),
    # For the operator's monitoring: metrics are sums over all tenants. No role of a tenant has the
    # scope, so that no tenant's admin can make such a key.
    "metrics": frozenset({"metrics:read"}),
}
DEFAULT_ROLE: Final = "admin"


def scopes_of(role: str) -> frozenset[str]:
    """Return the scopes of a role; an unknown role has none, so that doubt denies."""
    return ROLES.get(role, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who an authenticated request speaks for."""

    key_id: str
    tenant: str
    role: str
    scopes: frozenset[str]
    is_test: bool

    def may(self, scope: str) -> bool:
        """Tell whether this principal holds exactly this scope."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredKey:
    """One key that the operator configured in the environment."""

    key: str = field(repr=False)
    tenant: str
    role: str
    is_test: bool


def new_key(secret_bytes: bytes, *, is_test: bool) -> str:
    """Write fresh random bytes as a key that says of itself whether it is for testing."""
    if len(secret_bytes) < MIN_KEY_BYTES:
        raise ValueError(f"a key needs {MIN_KEY_BYTES} random bytes, not {len(secret_bytes)}")
    prefix = TEST_KEY_PREFIX if is_test else LIVE_KEY_PREFIX
    return prefix + base64.urlsafe_b64encode(secret_bytes).rstrip(b"=").decode("ascii")


def hash_key(key: str) -> bytes:
    """Return what is stored in place of the key.

    A plain SHA-256 is right here. Slow, salted hashes protect what people choose and others can
    guess; 256 random bits cannot be guessed at any speed, and every request pays for this.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def same(left: bytes, right: bytes) -> bool:
    """Compare two hashes in a time that does not tell where they differ."""
    return hmac.compare_digest(left, right)


def is_test_key(key: str) -> bool:
    """Tell whether a key says that it is for testing."""
    return key.startswith(_TEST_PREFIXES)


def parse_env_keys(text: str) -> tuple[ConfiguredKey, ...]:
    """Read `key:tenant[:role],...`, the form of `WOPR_API_KEYS`; the default role is admin.

    A key has at least `MIN_KEY_LENGTH` characters.

    Raises `ValueError` that counts the entries from 1 and repeats no part of any: a field in
    the wrong place may be the key.
    """
    entries = [entry.strip() for entry in text.split(",")]
    keys = tuple(
        _parse_entry(entry, number) for number, entry in enumerate(entries, start=1) if entry
    )
    if len({each.key for each in keys}) < len(keys):
        raise ValueError("WOPR_API_KEYS names the same key twice; give each tenant its own")
    return keys


def _parse_entry(entry: str, number: int) -> ConfiguredKey:
    where = f"entry {number} of WOPR_API_KEYS"
    fields = [part.strip() for part in entry.split(":")]
    if len(fields) not in (2, 3):
        raise ValueError(
            f"{where} has {len(fields)} fields; write key:tenant or key:tenant:role, "
            "and use no colon or comma inside a field"
        )
    if not all(fields):
        raise ValueError(f"{where} has an empty field; write key:tenant or key:tenant:role")
    key, tenant, role = (*fields, DEFAULT_ROLE)[:3]
    if role not in ROLES:
        raise ValueError(f"{where} names an unknown role; the roles are {', '.join(ROLES)}")
    if len(key) < MIN_KEY_LENGTH:
        raise ValueError(
            f"{where} has a key shorter than {MIN_KEY_LENGTH} characters, which can be guessed; "
            "make one with: openssl rand -hex 24"
        )
    return ConfiguredKey(key=key, tenant=tenant, role=role, is_test=is_test_key(key))
