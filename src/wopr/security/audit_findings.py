"""What is wrong with an audit log: each entry and each checkpoint against those before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from wopr.protocol.documents import JsonObject
from wopr.security.audit_chain import Tree, canonical, hash_of, is_signed

Kind = Literal["entry", "checkpoint"]
# Where there is no entry before, `prevHash` is null.
NOTHING: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, named so that it can be found; the hashes are those that should agree."""

    kind: Kind
    at: int
    message: str
    expected: str = ""
    actual: str = ""


class Walk:
    """Walks the log in order, from its beginning or from a root that can be trusted."""

    def __init__(self, tree: Tree | None = None, previous: bytes | None = None) -> None:
        self.tree = tree or Tree()
        # The sequence that comes next. Where entries are missing the tree has fewer leaves.
        self.next = self.tree.count
        self._previous = previous

    def entry(self, sequence: int, tenant: str, body: bytes, digest: bytes) -> Iterator[Finding]:
        """Look at the next entry as it is stored."""
        before = NOTHING if self._previous is None else hash_of(self._previous)
        carried, faults = _read(sequence, tenant, body)
        if sequence != self.next:
            missing = f"{self.next} to {sequence - 1}"
            yield _entry(sequence, f"entries {missing} are missing", before, carried)
        actual = hash_of(body)
        if actual != digest.hex():
            faults.insert(0, "was changed after it was written")
        for fault in faults:
            yield _entry(sequence, f"entry {sequence} {fault}", digest.hex(), actual)
        if carried != before:
            message = f"entry {sequence} does not follow on the entry before it"
            yield _entry(sequence, message, before, carried)
        self._previous = body
        self.tree.add(body)
        self.next = sequence + 1

    def checkpoint(
        self, at: int, root: str, signature: str, public_key: str, peaks: bytes
    ) -> Iterator[Finding]:
        """Look at a checkpoint once the walk has come to its sequence."""
        if self.next != at + 1:
            yield _checkpoint(at, f"checkpoint {at} covers entries that are not there")
        else:
            actual = self.tree.root().hex()
            if actual != root:
                message = f"checkpoint {at} has another root than the entries it covers"
                yield Finding(
                    kind="checkpoint", at=at, message=message, expected=root, actual=actual
                )
            if self.tree.peaks != peaks:
                yield _checkpoint(at, f"the subtrees of checkpoint {at} were changed")
        if not is_signed(root, signature, public_key):
            yield _checkpoint(at, f"the signature of checkpoint {at} is not valid")


def _read(sequence: int, tenant: str, body: bytes) -> tuple[str, list[str]]:
    """The `prevHash` that an entry carries, and what is wrong with the entry by itself."""
    try:
        entry: JsonObject = msgspec.json.decode(body, type=dict[str, object])
        is_canonical = canonical(entry) == body
    except (ValueError, UnicodeDecodeError, RecursionError):
        return "", ["cannot be read"]
    faults: list[str] = []
    if not is_canonical:
        faults.append("is not in its canonical form")
    if entry.get("sequence") != sequence:
        faults.append(f"says of itself that it is entry {entry.get('sequence')}")
    if entry.get("tenant") != tenant:
        faults.append("is filed under another tenant than its own")
    carried = entry.get("prevHash", "")
    return NOTHING if carried is None else str(carried), faults


def _entry(at: int, message: str, expected: str, actual: str) -> Finding:
    return Finding(kind="entry", at=at, message=message, expected=expected, actual=actual)


def _checkpoint(at: int, message: str) -> Finding:
    return Finding(kind="checkpoint", at=at, message=message)
