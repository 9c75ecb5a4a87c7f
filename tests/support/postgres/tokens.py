"""Tokens as the host signs them, for tests that connect to the database directly."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from wopr.store.postgres.tokens import HOST, LIFETIME_SECONDS, TENANT, TokenKey

_KEY = "SELECT inner_key, outer_key FROM wopr.token_keys ORDER BY created_at LIMIT 1"


def stored_key(admin: psycopg.Connection[Any]) -> TokenKey:
    """Read the key with which the database checks tokens, as its administrator."""
    found = admin.execute(_KEY).fetchone()
    assert found is not None
    return TokenKey(*found)


def tenant_token(key: TokenKey, connection: psycopg.Connection[Any], tenant: str) -> str:
    """Sign a tenant for a connection."""
    return key.token(connection.info.backend_pid, expiry(), TENANT + tenant)


def host_token(key: TokenKey, connection: psycopg.Connection[Any]) -> str:
    """Sign the host for a connection."""
    return key.token(connection.info.backend_pid, expiry(), HOST)


def expiry() -> int:
    """Return the expiry of a token signed now."""
    return int(time.time()) + LIFETIME_SECONDS
