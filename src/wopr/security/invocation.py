"""Idempotency: the names under which an answer or an outside effect happens once."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

import msgspec

from wopr.security.digest import json_digest


def logical_invocation_id(
    tenant: str, run_id: str, node_id: str, ordinal: int, provider_key: str
) -> str:
    """Name one outside effect of a run (Idempotency, layer 2).

    The attempt is not part of it, so a retry carries the name of the call it repeats.
    """
    ingredients = (tenant, run_id, node_id, str(ordinal), provider_key)
    if any("\0" in each for each in ingredients):
        raise ValueError("an ingredient of an invocation id cannot hold a NUL character")
    text = "\0".join(("openwop:activity:v2", *ingredients))
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def answer_key_hash(tenant: str, endpoint: str, key: str) -> bytes:
    """Return where the answer to an `Idempotency-Key` is kept (Idempotency, layer 1).

    It is the hash of `tenant:endpoint:key`. Colons of the tenant and of the endpoint are
    escaped first: `runs` with the key `x:1` must not meet `runs:x` with the key `1`.
    """
    text = f"{_without_colons(tenant)}:{_without_colons(endpoint)}:{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def request_digest(body: bytes, query: Mapping[str, str] | None = None) -> bytes:
    """Return what two requests under one key are compared by: the body and the query parameters.

    JSON is compared as a value, so key order and white space do not matter; anything else is
    compared byte for byte. The order of query parameters does not matter either.
    """
    try:
        digest = json_digest(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        digest = hashlib.sha256(body).digest()
    if not query:
        return digest
    return hashlib.sha256(digest + msgspec.json.encode(query, order="sorted")).digest()


def _without_colons(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")
