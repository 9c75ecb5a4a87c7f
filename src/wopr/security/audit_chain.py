"""The audit chain: canonical entries, each with the hash of the one before, under signed roots.

Entries. An entry is a JSON object in its canonical form (RFC 8785). Its `prevHash` is the SHA-256
of the canonical form of the entry before it, in lowercase hexadecimal; the first one has null.

Tree. The Merkle tree is that of RFC 6962. A leaf is SHA-256(0x00 ‖ canonical entry), a node is
SHA-256(0x01 ‖ left ‖ right), and n leaves are split at the largest power of two below n. A
checkpoint at sequence s covers the leaves 0 to s.

Signature. Ed25519 over the 32 raw bytes of the root. The public key is its SPKI form in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final

import rfc8785
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from wopr.protocol.documents import JsonObject

HASH_BYTES: Final = 32


def canonical(entry: JsonObject) -> bytes:
    """Write an entry in the one form that is hashed. Raises `ValueError` for what JSON has not."""
    return rfc8785.dumps(entry)


def linked(entry: JsonObject, previous: bytes | None) -> bytes:
    """The canonical form of an entry that follows on the canonical form of another."""
    return canonical(entry | {"prevHash": None if previous is None else hash_of(previous)})


def hash_of(body: bytes) -> str:
    """What the entry after this one holds as its `prevHash`."""
    return hashlib.sha256(body).hexdigest()


class Tree:
    """A Merkle tree that grows at its end and keeps only the roots of its full subtrees."""

    def __init__(self, count: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self.count = count
        self._peaks = list(peaks)

    @classmethod
    def restored(cls, count: int, peaks: bytes) -> Tree | None:
        """A tree of so many leaves from its peaks; None when there cannot be these."""
        if len(peaks) != count.bit_count() * HASH_BYTES:
            return None
        starts = range(0, len(peaks), HASH_BYTES)
        return cls(count, (peaks[start : start + HASH_BYTES] for start in starts))

    @property
    def peaks(self) -> bytes:
        """The roots of the full subtrees, the largest first."""
        return b"".join(self._peaks)

    def add(self, body: bytes) -> None:
        """Add the canonical form of the next entry."""
        node = hashlib.sha256(b"\x00" + body).digest()
        # Each trailing 1 of the count is a full subtree as large as what has been joined so far.
        size = self.count
        while size & 1:
            node = _join(self._peaks.pop(), node)
            size >>= 1
        self._peaks.append(node)
        self.count += 1

    def root(self) -> bytes:
        """The root over all leaves so far."""
        if not self._peaks:
            return hashlib.sha256(b"").digest()
        *others, node = self._peaks
        for peak in reversed(others):
            node = _join(peak, node)
        return node


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class CheckpointKey:
    """The key that signs checkpoints, and nothing else."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        spki = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.public_key = base64.b64encode(spki).decode()

    def sign(self, root: bytes) -> str:
        """Sign the raw bytes of a root."""
        return base64.b64encode(self._key.sign(root)).decode()


def is_signed(root_hex: str, signature: str, public_key: str) -> bool:
    """Tell whether the key signed this root. What cannot be read is not signed."""
    try:
        key = load_der_public_key(base64.b64decode(public_key, validate=True))
        if not isinstance(key, Ed25519PublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), bytes.fromhex(root_hex))
    except (InvalidSignature, UnsupportedAlgorithm, binascii.Error, ValueError):
        return False
    return True
