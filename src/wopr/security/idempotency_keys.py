"""Idempotency: keys of responses and of outside effects."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

import msgspec

from wopr.security.digest import json_digest


def logical_invocation_id(
    tenant: str, run_id: str, node_id: str, ordinal: int, provider_key: str
) -> str:
    """Return the id of an outside effect of a run (layer 2 of idempotency).

    The attempt is not part of the id, so a retry has the id of the call that it repeats.
    """
    parts = (tenant, run_id, node_id, str(ordinal), provider_key)
    if any("\0" in part for part in parts):
        raise ValueError("no part of an invocation id may contain a NUL character")
    text = "\0".join(("openwop:activity:v2", *parts))
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def response_key_hash(tenant: str, endpoint: str, key: str) -> bytes:
    """Return the storage key of the response to an `Idempotency-Key` (layer 1 of idempotency).

    It is the hash of `tenant:endpoint:key`. Colons of the tenant and of the endpoint are escaped
    first: `runs` with the key `x:1` must differ from `runs:x` with the key `1`.
    """
    text = f"{_escape(tenant)}:{_escape(endpoint)}:{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def request_digest(body: bytes, query: Mapping[str, str] | None = None) -> bytes:
    """Return the digest by which two requests with the same key are compared.

    It covers the body and the query parameters. Key order and white space of a JSON body, and the
    order of query parameters, do not matter. Any other body is compared byte for byte.
    """
    try:
        digest = json_digest(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        digest = hashlib.sha256(body).digest()
    if not query:
        return digest
    return hashlib.sha256(digest + msgspec.json.encode(query, order="sorted")).digest()


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")
