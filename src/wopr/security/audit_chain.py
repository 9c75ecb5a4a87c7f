"""The audit chain: canonical entries, each with the hash of the entry before it, and signed roots.

Entries. An entry is a JSON object in its canonical form (RFC 8785). Its `prevHash` is the SHA-256
of the canonical form of the entry before it, in lowercase hexadecimal; the first entry has null.

Tree. The Merkle tree is that of RFC 6962. A leaf is SHA-256(0x00 ‖ canonical entry), a node is
SHA-256(0x01 ‖ left ‖ right), and n leaves are split at the largest power of two below n. A
checkpoint at sequence s covers the leaves 0 to s.

Signature. Ed25519 over the 32 raw bytes of the root. The public key is its SPKI form in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from wopr.protocol.documents import JsonObject

HASH_BYTES: Final = 32


def canonical_form(entry: JsonObject) -> bytes:
    """Return the canonical form of an entry. Raises `ValueError` for values that are not JSON."""
    return rfc8785.dumps(entry)


def link_entry(entry: JsonObject, previous: bytes | None) -> bytes:
    """Return the canonical form of an entry with the hash of the entry before it."""
    return canonical_form(entry | {"prevHash": None if previous is None else entry_hash(previous)})


def entry_hash(body: bytes) -> str:
    """Return the `prevHash` of the entry after this one."""
    return hashlib.sha256(body).hexdigest()


class MerkleTree:
    """A Merkle tree that grows at its end and keeps only the roots of its full subtrees."""

    def __init__(self, count: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self.count = count
        self._peaks = list(peaks)

    @classmethod
    def restore(cls, count: int, peaks: bytes) -> MerkleTree | None:
        """Restore a tree from its leaf count and its peaks; None if they do not fit."""
        if len(peaks) != count.bit_count() * HASH_BYTES:
            return None
        starts = range(0, len(peaks), HASH_BYTES)
        return cls(count, (peaks[start : start + HASH_BYTES] for start in starts))

    @property
    def peaks(self) -> bytes:
        """Return the roots of the full subtrees, the largest first."""
        return b"".join(self._peaks)

    def add(self, body: bytes) -> None:
        """Add the canonical form of the next entry."""
        node = hashlib.sha256(b"\x00" + body).digest()
        # Each trailing 1 of the count is a full subtree with as many leaves as `node`.
        size = self.count
        while size & 1:
            node = _join(self._peaks.pop(), node)
            size >>= 1
        self._peaks.append(node)
        self.count += 1

    def root(self) -> bytes:
        """Return the root over all leaves."""
        if not self._peaks:
            return hashlib.sha256(b"").digest()
        *others, node = self._peaks
        for peak in reversed(others):
            node = _join(peak, node)
        return node


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class CheckpointKey:
    """The key that signs checkpoints. It signs nothing else."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        spki = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.public_key = base64.b64encode(spki).decode()

    def sign(self, root: bytes) -> str:
        """Sign the raw bytes of a root."""
        return base64.b64encode(self._key.sign(root)).decode()


def is_valid_signature(root_hex: str, signature: str, public_key: str) -> bool:
    """Return whether the key signed this root. False for input that cannot be decoded."""
    try:
        key = load_der_public_key(base64.b64decode(public_key, validate=True))
        if not isinstance(key, Ed25519PublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), bytes.fromhex(root_hex))
    except (InvalidSignature, UnsupportedAlgorithm, binascii.Error, ValueError):
        return False
    return True


FindingKind = Literal["entry", "checkpoint"]
# The `prevHash` of the first entry, as findings show it.
NULL_HASH: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One fault and its place. `expected` and `actual` are the hashes that should be equal."""

    kind: FindingKind
    at: int
    message: str
    expected: str = ""
    actual: str = ""


class ChainVerifier:
    """Verifies the log in order, from its beginning or from a trusted root."""

    def __init__(self, tree: MerkleTree | None = None, previous: bytes | None = None) -> None:
        self.tree = tree or MerkleTree()
        # The next sequence. It differs from the number of leaves if entries are missing.
        self.next_sequence = self.tree.count
        self._previous = previous

    def verify_entry(
        self, sequence: int, tenant: str, body: bytes, digest: bytes
    ) -> Iterator[AuditFinding]:
        """Verify the next stored entry."""
        expected = NULL_HASH if self._previous is None else entry_hash(self._previous)
        prev_hash, faults = _read_entry(sequence, tenant, body)
        if sequence != self.next_sequence:
            missing = f"{self.next_sequence} to {sequence - 1}"
            yield _entry_finding(sequence, f"entries {missing} are missing", expected, prev_hash)
        actual = entry_hash(body)
        if actual != digest.hex():
            faults.insert(0, "was changed after it was written")
        for fault in faults:
            yield _entry_finding(sequence, f"entry {sequence} {fault}", digest.hex(), actual)
        if prev_hash != expected:
            message = f"entry {sequence} does not follow the entry before it"
            yield _entry_finding(sequence, message, expected, prev_hash)
        self._previous = body
        self.tree.add(body)
        self.next_sequence = sequence + 1

    def verify_checkpoint(
        self, at: int, root: str, signature: str, public_key: str, peaks: bytes
    ) -> Iterator[AuditFinding]:
        """Verify a checkpoint after the entries that it covers."""
        if self.next_sequence != at + 1:
            yield _checkpoint_finding(at, f"checkpoint {at} covers entries that are missing")
        else:
            actual = self.tree.root().hex()
            if actual != root:
                message = f"checkpoint {at} has a different root than the entries it covers"
                yield AuditFinding(
                    kind="checkpoint", at=at, message=message, expected=root, actual=actual
                )
            if self.tree.peaks != peaks:
                yield _checkpoint_finding(at, f"the subtrees of checkpoint {at} were changed")
        if not is_valid_signature(root, signature, public_key):
            yield _checkpoint_finding(at, f"the signature of checkpoint {at} is not valid")


def _read_entry(sequence: int, tenant: str, body: bytes) -> tuple[str, list[str]]:
    """Return the `prevHash` of an entry, and the faults of the entry itself."""
    try:
        entry: JsonObject = msgspec.json.decode(body, type=dict[str, object])
        is_canonical = canonical_form(entry) == body
    except (ValueError, UnicodeDecodeError, RecursionError):
        return "", ["cannot be read"]
    faults: list[str] = []
    if not is_canonical:
        faults.append("is not in its canonical form")
    if entry.get("sequence") != sequence:
        faults.append(f"has the sequence {entry.get('sequence')}")
    if entry.get("tenant") != tenant:
        faults.append(f"is stored under tenant {tenant} but names another")
    prev_hash = entry.get("prevHash", "")
    return NULL_HASH if prev_hash is None else str(prev_hash), faults


def _entry_finding(at: int, message: str, expected: str, actual: str) -> AuditFinding:
    return AuditFinding(kind="entry", at=at, message=message, expected=expected, actual=actual)


def _checkpoint_finding(at: int, message: str) -> AuditFinding:
    return AuditFinding(kind="checkpoint", at=at, message=message)
