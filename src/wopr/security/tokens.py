"""Signatures with HMAC-SHA256: tokens that resolve an interrupt, and webhook deliveries.

The text of a token is `base64url(payload) + "." + hex(signature)`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from wopr.protocol.documents import Document, NonEmpty


class InterruptToken(Document, frozen=True, kw_only=True):
    """The content of an interrupt token. It is valid for one interrupt until that ends."""

    tenant: NonEmpty
    run_id: NonEmpty
    node_id: NonEmpty
    interrupt_id: NonEmpty
    # Milliseconds since the epoch.
    expires_at: int
    intent: Literal["resolve", "inspect"]


def sign_interrupt_token(token: InterruptToken, key: bytes) -> str:
    """Return the signed text of a token."""
    return _signed(msgspec.json.encode(token), key)


def _signed(payload: bytes, key: bytes) -> str:
    signature = hmac.new(key, payload, hashlib.sha256).hexdigest()
    return f"{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.{signature}"


def read_interrupt_token(text: str, keys: Sequence[bytes]) -> InterruptToken | None:
    """Parse a token that one of the keys signed; None for any other text.

    With several keys, tokens that were signed with an old key stay valid.
    """
    encoded = text.partition(".")[0]
    try:
        payload = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (ValueError, binascii.Error):
        return None
    # The whole text is compared, in constant time: decoders ignore stray characters, and only one
    # text is valid for a token.
    given = text.encode("utf-8", "surrogatepass")
    genuine = [hmac.compare_digest(_signed(payload, key).encode(), given) for key in keys]
    if not any(genuine):
        return None
    try:
        return msgspec.json.decode(payload, type=InterruptToken)
    except msgspec.MsgspecError:
        return None


# The value of the header `X-openwop-Signature-Algorithm`.
WEBHOOK_SIGNATURE_VERSION: Final = "v1"
WEBHOOK_SECRET_BYTES: Final = 32
_FINGERPRINT_LENGTH: Final = 8


def webhook_signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the `X-openwop-Signature` of `{timestamp}.{body}`.

    The key is the secret in the form that the receiver has: 64 hexadecimal characters.
    """
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={signed.hexdigest()}"


def secret_fingerprint(secret: str) -> str:
    """Return a fingerprint that identifies a secret without revealing it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:_FINGERPRINT_LENGTH]
