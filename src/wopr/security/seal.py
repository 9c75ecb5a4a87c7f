"""Sealing: what is secret on the disk is encrypted under a key that the host alone holds."""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12

_VERSION: Final = b"\x01"
_HEADER: Final = len(_VERSION) + NONCE_BYTES


class SealBroken(ValueError):
    """The bytes were changed, belong to another context or were sealed under another key."""


def derive(host_secret: bytes, purpose: str) -> bytes:
    """Return the key for one purpose; keys of different purposes tell nothing of each other."""
    if len(host_secret) < KEY_BYTES:
        raise ValueError(f"the host secret needs {KEY_BYTES} bytes, not {len(host_secret)}")
    if not purpose:
        raise ValueError("a derived key needs a purpose")
    info = b"wopr:" + purpose.encode("utf-8")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(host_secret)


def is_sealed_value(body: bytes) -> bool:
    """Tell sealed bytes from JSON, which begins with another byte."""
    return body.startswith(_VERSION)


class Seal:
    """AES-256-GCM under one key.

    The context binds a sealed value to its place, such as the tenant and the row: moved
    elsewhere it does not open.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a sealing key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def seal(self, plaintext: bytes, *, nonce: bytes, context: bytes) -> bytes:
        """Encrypt; the nonce must be fresh random bytes, never used with this key before."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return _VERSION + nonce + self._cipher.encrypt(nonce, plaintext, _VERSION + context)

    def open(self, sealed: bytes, *, context: bytes) -> bytes:
        """Decrypt what was sealed in the same context. Raises `SealBroken` for anything else."""
        if not sealed.startswith(_VERSION) or len(sealed) < _HEADER:
            raise SealBroken("not a sealed value")
        nonce, ciphertext = sealed[len(_VERSION) : _HEADER], sealed[_HEADER:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, _VERSION + context)
        except InvalidTag as broken:
            raise SealBroken("the sealed value does not open here") from broken
