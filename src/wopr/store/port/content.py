"""Encryption of stored content, as a store needs it."""

from __future__ import annotations

from typing import Protocol


class ContentCipher(Protocol):
    """Encrypts with the newest key and decrypts with any key that it has.

    The context says where a value is stored; in another place it does not open. What was stored
    before encryption was on is returned as it is.
    """

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of its keys, the newest first."""
        ...

    @property
    def head(self) -> bytes:
        """How a value begins that is encrypted with the newest key."""
        ...

    @property
    def text_head(self) -> str:
        """How a text begins that is encrypted with the newest key."""
        ...

    def encrypt(self, plain: bytes, *context: str | int) -> bytes:
        """Encrypt bytes."""
        ...

    def decrypt(self, stored: bytes, *context: str | int) -> bytes:
        """Decrypt bytes."""
        ...

    def encrypt_text(self, plain: str, *context: str | int) -> str:
        """Encrypt a text into a text."""
        ...

    def decrypt_text(self, stored: str, *context: str | int) -> str:
        """Decrypt a text."""
        ...
