"""Encryption of stored content: AES-256-GCM under one of several keys.

An encrypted value begins with a mark and the id of its key, so that values of an older key, and
values that were stored before encryption was on, are told apart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wopr.protocol.errors import WoprError
from wopr.security.seal import KEY_BYTES, NONCE_BYTES, Seal, SealBroken

# Five bytes and four of the key's id: base64 shows nine bytes as twelve characters of their own.
MARK: Final = b"\x02wopr"
TEXT_MARK: Final = "\x02wopr:"
_ID_BYTES: Final = 4
_HEADER: Final = len(MARK) + _ID_BYTES


class UnusableKeys(ValueError):
    """The text does not hold keys of 32 bytes as base64."""


class UnreadableContent(WoprError):
    """Stored content does not open: its key is missing, or it was changed or moved."""


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Read keys that are separated by commas or white space; the first is the one to write with."""
    keys: list[bytes] = []
    for number, word in enumerate(text.replace(",", " ").split(), start=1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise UnusableKeys(f"key {number} is not base64") from None
        if len(key) != KEY_BYTES:
            raise UnusableKeys(f"key {number} has {len(key)} bytes; it needs {KEY_BYTES}")
        keys.append(key)
    if not keys:
        raise UnusableKeys("there is no key")
    return tuple(keys)


def key_id(key: bytes) -> str:
    """Return the id of a key, which may be shown."""
    return hashlib.sha256(b"wopr encryption key" + key).hexdigest()[: 2 * _ID_BYTES]


def key_of(stored: bytes) -> str | None:
    """Return the id of the key that a value is encrypted with; None for one that is not."""
    return stored[len(MARK) : _HEADER].hex() if stored.startswith(MARK) else None


class Cipher:
    """Encrypts with the first key, and decrypts with any of them.

    The context says where a value is stored, such as its tenant, run and sequence: in another place
    it does not open. `random` returns so many fresh random bytes.
    """

    def __init__(self, keys: Sequence[bytes], random: Callable[[int], bytes]) -> None:
        self.key_ids = tuple(key_id(key) for key in keys)
        self._seals = {bytes.fromhex(key_id(key)): Seal(key) for key in keys}
        self._head = MARK + bytes.fromhex(self.key_ids[0])
        self._newest = self._seals[bytes.fromhex(self.key_ids[0])]
        self._random = random

    def encrypt(self, plain: bytes, *context: str | int) -> bytes:
        """Encrypt with the newest key."""
        place = msgspec.json.encode(context)
        nonce = self._random(NONCE_BYTES)
        return self._head + self._newest.seal(plain, nonce=nonce, context=place)

    def decrypt(self, stored: bytes, *context: str | int) -> bytes:
        """Decrypt; a value that was stored before encryption was on is returned as it is."""
        if not stored.startswith(MARK):
            return stored
        seal = self._seals.get(stored[len(MARK) : _HEADER])
        if seal is None:
            raise UnreadableContent(f"the encryption key {key_of(stored)} is not configured")
        try:
            return seal.open(stored[_HEADER:], context=msgspec.json.encode(context))
        except SealBroken:
            raise UnreadableContent(
                f"stored content of {context[0]} {context[2:]} was changed or moved"
            ) from None

    def encrypt_text(self, plain: str, *context: str | int) -> str:
        """Encrypt a text into a text."""
        sealed = self.encrypt(plain.encode("utf-8", "surrogatepass"), *context)
        return TEXT_MARK + base64.b64encode(sealed).decode()

    def decrypt_text(self, stored: str, *context: str | int) -> str:
        """Decrypt a text; one that was stored before encryption was on is returned as it is."""
        if not stored.startswith(TEXT_MARK):
            return stored
        try:
            sealed = base64.b64decode(stored.removeprefix(TEXT_MARK), validate=True)
        except (binascii.Error, ValueError):
            # It only begins like an encrypted text.
            return stored
        return self.decrypt(sealed, *context).decode("utf-8", "surrogatepass")

    @property
    def head(self) -> bytes:
        """How a value begins that is encrypted with the newest key."""
        return self._head

    @property
    def text_head(self) -> str:
        """How a text begins that is encrypted with the newest key."""
        return TEXT_MARK + base64.b64encode(self._head).decode()
