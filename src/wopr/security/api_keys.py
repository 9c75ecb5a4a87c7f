"""API keys: their format, their hash, their roles, and the scopes of each role."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Final

LIVE_KEY_PREFIX: Final = "wopr_live_"
TEST_KEY_PREFIX: Final = "wopr_test_"
MIN_KEY_BYTES: Final = 32
# The shortest key that an operator may choose.
MIN_KEY_LENGTH: Final = 16

_TEST_PREFIXES: Final = (TEST_KEY_PREFIX, "test_", "test-")

_READ_SCOPES: Final = frozenset({"manifest:read", "runs:read", "artifacts:read", "fleet:read"})
_WORK_SCOPES: Final = _READ_SCOPES | {
    "runs:create",
    "runs:cancel",
    "runs:annotate",
    "webhooks:manage",
}

# No scope implies another. `conformance:author`, `annotations:actor` and `quotas:manage` are in no
# role: an operator grants them by name.
ROLES: Final[dict[str, frozenset[str]]] = {
    "admin": _WORK_SCOPES
    | {
        "approvals:respond",
        "audit:read",
        "host:read",
        "workflows:write",
        "agents:write",
        "fleet:ingest",
        "keys:manage",
    },
    "operator": _WORK_SCOPES | {"approvals:respond", "audit:read", "host:read"},
    "developer": _WORK_SCOPES | {"workflows:write", "agents:write"},
    "reviewer": _READ_SCOPES | {"runs:annotate", "approvals:respond"},
    "viewer": _READ_SCOPES,
    "ingest": frozenset({"fleet:ingest"}),
    # For the operator's monitoring: metrics are sums over all tenants. No role of a tenant has the
    # scope, so that no tenant's admin can make such a key.
    "metrics": frozenset({"metrics:read"}),
}
DEFAULT_ROLE: Final = "admin"


def scopes_of(role: str) -> frozenset[str]:
    """Return the scopes of a role; an unknown role has no scopes."""
    return ROLES.get(role, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The tenant and the permissions of an authenticated request."""

    key_id: str
    tenant: str
    role: str
    scopes: frozenset[str]
    is_test: bool

    def may(self, scope: str) -> bool:
        """Return whether this principal holds exactly this scope."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredKey:
    """One key that the operator configured in the environment."""

    key: str = field(repr=False)
    tenant: str
    role: str
    is_test: bool


def new_key(secret_bytes: bytes, *, is_test: bool) -> str:
    """Return a new key from random bytes. Its prefix shows whether it is a test key."""
    if len(secret_bytes) < MIN_KEY_BYTES:
        raise ValueError(f"a key needs {MIN_KEY_BYTES} random bytes, not {len(secret_bytes)}")
    prefix = TEST_KEY_PREFIX if is_test else LIVE_KEY_PREFIX
    return prefix + base64.urlsafe_b64encode(secret_bytes).rstrip(b"=").decode("ascii")


def hash_key(key: str) -> bytes:
    """Return what is stored in place of the key.

    A plain SHA-256 is enough. Slow, salted hashes protect passwords that can be guessed; 256 random
    bits cannot be guessed, and every request computes this hash.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def is_test_key(key: str) -> bool:
    """Return whether a key has the prefix of a test key."""
    return key.startswith(_TEST_PREFIXES)


def parse_env_keys(text: str) -> tuple[ConfiguredKey, ...]:
    """Parse `key:tenant[:role],...`, the format of `WOPR_API_KEYS`; the default role is admin.

    Raises `ValueError` with the number of the entry, counted from 1. The message contains no part
    of an entry: a field in the wrong place may be the key.
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
        raise ValueError(f"{where} has an unknown role; the roles are {', '.join(ROLES)}")
    if len(key) < MIN_KEY_LENGTH:
        raise ValueError(
            f"{where} has a key shorter than {MIN_KEY_LENGTH} characters, which can be guessed; "
            "make one with: openssl rand -hex 24"
        )
    return ConfiguredKey(key=key, tenant=tenant, role=role, is_test=is_test_key(key))
