"""Encryption with AES-256-GCM.

`Seal` encrypts under one key, such as a key that is derived from the host key. `Cipher` encrypts
stored content under one of several keys.

A value of `Cipher` begins with a mark and the id of its key. So values of an older key, and values
that were stored before encryption was switched on, can be recognised.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from wopr.protocol.errors import WoprError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12

_VERSION: Final = b"\x01"
_SEAL_HEADER: Final = len(_VERSION) + NONCE_BYTES
# Five bytes and four of the key's id: base64 encodes these nine bytes as exactly twelve characters.
MARK: Final = b"\x02wopr"
TEXT_MARK: Final = "\x02wopr:"
_ID_BYTES: Final = 4
_HEADER: Final = len(MARK) + _ID_BYTES


class SealBroken(ValueError):
    """The bytes were changed, belong to another context or were encrypted with another key."""


def derive(host_key: bytes, purpose: str) -> bytes:
    """Derive the key for one purpose. Keys of different purposes are independent."""
    if len(host_key) < KEY_BYTES:
        raise ValueError(f"the host key needs {KEY_BYTES} bytes, not {len(host_key)}")
    if not purpose:
        raise ValueError("a derived key needs a purpose")
    info = b"wopr:" + purpose.encode("utf-8")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(host_key)


def is_sealed_value(body: bytes) -> bool:
    """Return whether the bytes are encrypted and not JSON."""
    return body.startswith(_VERSION)


class Seal:
    """AES-256-GCM under one key.

    The context binds an encrypted value to its place, such as the tenant and the row. A value that
    was moved to another place cannot be decrypted.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"an encryption key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def seal(self, plaintext: bytes, *, nonce: bytes, context: bytes) -> bytes:
        """Encrypt a value. The nonce must be random bytes that were never used with this key."""
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return _VERSION + nonce + self._cipher.encrypt(nonce, plaintext, _VERSION + context)

    def open(self, sealed: bytes, *, context: bytes) -> bytes:
        """Decrypt a value of the same context. Raises `SealBroken` for any other value."""
        if not sealed.startswith(_VERSION) or len(sealed) < _SEAL_HEADER:
            raise SealBroken("the value is not encrypted with this scheme")
        nonce, ciphertext = sealed[len(_VERSION) : _SEAL_HEADER], sealed[_SEAL_HEADER:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, _VERSION + context)
        except InvalidTag as broken:
            raise SealBroken(
                "the value was changed, or belongs to another key or context"
            ) from broken


class UnusableKeys(ValueError):
    """The text does not contain keys of 32 bytes as base64."""


class UnreadableContent(WoprError):
    """Stored content cannot be decrypted: its key is missing, or it was changed or moved."""


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Parse keys separated by commas or white space. The first key encrypts."""
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
        raise UnusableKeys("no key is given")
    return tuple(keys)


def key_id(key: bytes) -> str:
    """Return the id of a key. It does not reveal the key."""
    return hashlib.sha256(b"wopr encryption key" + key).hexdigest()[: 2 * _ID_BYTES]


def key_of(stored: bytes) -> str | None:
    """Return the id of the key that a value is encrypted with; None if it is not encrypted."""
    return stored[len(MARK) : _HEADER].hex() if stored.startswith(MARK) else None


class Cipher:
    """Encrypts with the first key, and decrypts with any of them.

    The context is the place of a value, such as its tenant, run and sequence. A value that was
    moved cannot be decrypted. `random` returns the given number of random bytes.
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
        """Decrypt a value. A value that is not encrypted is returned unchanged."""
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
        """Decrypt a text. A text that is not encrypted is returned unchanged."""
        if not stored.startswith(TEXT_MARK):
            return stored
        try:
            sealed = base64.b64decode(stored.removeprefix(TEXT_MARK), validate=True)
        except (binascii.Error, ValueError):
            # The text starts like an encrypted text but is not one.
            return stored
        return self.decrypt(sealed, *context).decode("utf-8", "surrogatepass")

    @property
    def head(self) -> bytes:
        """Return the first bytes of every value that is encrypted with the newest key."""
        return self._head

    @property
    def text_head(self) -> str:
        """Return the first characters of every text that is encrypted with the newest key."""
        return TEXT_MARK + base64.b64encode(self._head).decode()
