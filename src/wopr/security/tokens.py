"""Signed tokens: `base64url(payload) + "." + hex(hmac-sha256)`; who holds one may use it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal

import msgspec

from wopr.protocol.documents import Document, NonEmpty


class InterruptToken(Document, frozen=True, kw_only=True):
    """What an interrupt's token says; it holds for this one wait and no longer than it."""

    tenant: NonEmpty
    run_id: NonEmpty
    node_id: NonEmpty
    interrupt_id: NonEmpty
    # Milliseconds since the epoch.
    expires_at: int
    intent: Literal["resolve", "inspect"]


def sign(token: InterruptToken, key: bytes) -> str:
    """Write a token."""
    return _signed(msgspec.json.encode(token), key)


def _signed(payload: bytes, key: bytes) -> str:
    signature = hmac.new(key, payload, hashlib.sha256).hexdigest()
    return f"{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.{signature}"


def read(text: str, keys: Sequence[bytes]) -> InterruptToken | None:
    """Read a token that one of the keys signed; None for anything else.

    Several keys let old tokens live on while the key is being changed.
    """
    encoded = text.partition(".")[0]
    try:
        payload = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (ValueError, binascii.Error):
        return None
    # The whole text is compared, in a time that does not tell where it differs: decoders overlook
    # stray characters, and a token has one spelling only.
    given = text.encode("utf-8", "surrogatepass")
    genuine = [hmac.compare_digest(_signed(payload, key).encode(), given) for key in keys]
    if not any(genuine):
        return None
    try:
        return msgspec.json.decode(payload, type=InterruptToken)
    except msgspec.MsgspecError:
        return None
