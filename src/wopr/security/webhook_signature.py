"""Webhook signatures, version 1: HMAC-SHA256 over the time and the raw body."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

ALGORITHM: Final = "v1"
SECRET_BYTES: Final = 32
_FINGERPRINT_LENGTH: Final = 8


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Sign `{timestamp}.{body}`, the way `X-openwop-Signature` carries it.

    The key is the secret as the receiver was shown it: 64 hexadecimal characters.
    """
    signed = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"sha256={signed.hexdigest()}"


def fingerprint(secret: str) -> str:
    """Tell one secret from another without showing it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:_FINGERPRINT_LENGTH]
