from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.protocol.documents import JsonObject
from wopr.security.audit_chain import (
    AuditFinding,
    ChainVerifier,
    CheckpointKey,
    MerkleTree,
    canonical_form,
    entry_hash,
    is_valid_signature,
    link_entry,
)

KEY = CheckpointKey(b"k" * 32)
bodies = st.lists(st.binary(max_size=8), max_size=40)


def merkle(leaves: list[bytes]) -> bytes:
    """Compute the tree of RFC 6962 as it is defined there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    left, right = merkle(leaves[:split]), merkle(leaves[split:])
    return hashlib.sha256(b"\x01" + left + right).digest()


def grown(leaves: list[bytes]) -> MerkleTree:
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree


@given(bodies)
def test_a_growing_tree_has_the_root_that_the_definition_gives(leaves: list[bytes]) -> None:
    assert grown(leaves).root() == merkle(leaves)


@given(bodies, bodies)
def test_a_tree_restored_from_its_peaks_grows_like_the_original(
    before: list[bytes], after: list[bytes]
) -> None:
    first = grown(before)
    restored = MerkleTree.restore(first.count, first.peaks)
    assert restored is not None

    for leaf in after:
        restored.add(leaf)

    assert restored.root() == merkle(before + after)


@pytest.mark.parametrize(("count", "length"), [(1, 0), (3, 32), (4, 64), (0, 32), (5, 63)])
def test_peaks_of_the_wrong_length_restore_nothing(count: int, length: int) -> None:
    assert MerkleTree.restore(count, b"x" * length) is None


def test_the_canonical_form_sorts_members_and_has_no_spaces() -> None:
    assert (
        canonical_form({"b": 1, "a": {"d": "ü", "c": None}})
        == '{"a":{"c":null,"d":"ü"},"b":1}'.encode()
    )


def test_an_entry_contains_the_hash_of_the_previous_one_and_the_first_has_null() -> None:
    first = link_entry({"sequence": 0}, None)
    second = link_entry({"sequence": 1}, first)

    assert json.loads(first)["prevHash"] is None
    assert json.loads(second)["prevHash"] == hashlib.sha256(first).hexdigest() == entry_hash(first)


def test_a_signature_covers_the_raw_bytes_of_the_root() -> None:
    root = hashlib.sha256(b"root").digest()
    signature = KEY.sign(root)

    assert is_valid_signature(root.hex(), signature, KEY.public_key)
    assert len(base64.b64decode(signature)) == 64
    # An SPKI of Ed25519 is these 12 bytes and the key.
    assert base64.b64decode(KEY.public_key)[:12].hex() == "302a300506032b6570032100"


@pytest.mark.parametrize(
    ("root", "signature", "key"),
    [
        ("ff" * 32, KEY.sign(b"r" * 32), KEY.public_key),
        ((b"r" * 32).hex(), KEY.sign(b"s" * 32), KEY.public_key),
        ((b"r" * 32).hex(), KEY.sign(b"r" * 32), CheckpointKey(b"x" * 32).public_key),
        ((b"r" * 32).hex(), "not base64!", KEY.public_key),
        ((b"r" * 32).hex(), "", KEY.public_key),
        ((b"r" * 32).hex(), KEY.sign(b"r" * 32), "not base64!"),
        ((b"r" * 32).hex(), KEY.sign(b"r" * 32), ""),
        ("not hex", KEY.sign(b"r" * 32), KEY.public_key),
    ],
)
def test_data_signed_by_another_key_is_not_verified(root: str, signature: str, key: str) -> None:
    assert not is_valid_signature(root, signature, key)


# Verification


def log(count: int) -> list[tuple[int, str, bytes, bytes]]:
    rows: list[tuple[int, str, bytes, bytes]] = []
    body: bytes | None = None
    for sequence in range(count):
        entry: JsonObject = {"sequence": sequence, "tenant": "acme", "action": f"a{sequence}"}
        body = link_entry(entry, body)
        rows.append((sequence, "acme", body, hashlib.sha256(body).digest()))
    return rows


def findings(rows: list[tuple[int, str, bytes, bytes]]) -> list[AuditFinding]:
    walk = ChainVerifier()
    return [finding for row in rows for finding in walk.verify_entry(*row)]


def test_an_unchanged_log_has_no_faults() -> None:
    assert findings(log(20)) == []


@given(st.integers(0, 9), st.data())
def test_a_flipped_bit_in_an_entry_is_found_and_the_entry_is_named(
    place: int, data: st.DataObject
) -> None:
    rows = log(10)
    sequence, tenant, body, digest = rows[place]
    position = data.draw(st.integers(0, len(body) * 8 - 1))
    changed = bytearray(body)
    changed[position // 8] ^= 1 << position % 8
    rows[place] = (sequence, tenant, bytes(changed), digest)

    found = findings(rows)

    assert place in {finding.at for finding in found}
    assert all(finding.kind == "entry" and finding.expected for finding in found)


@given(st.integers(0, 9), st.integers(0, 255))
def test_a_flipped_bit_in_the_digest_column_is_found(place: int, position: int) -> None:
    rows = log(10)
    sequence, tenant, body, digest = rows[place]
    changed = bytearray(digest)
    changed[position // 8] ^= 1 << position % 8
    rows[place] = (sequence, tenant, body, bytes(changed))

    assert {finding.at for finding in findings(rows)} == {place}


def test_an_entry_rewritten_with_its_digest_breaks_the_chain_after_it() -> None:
    rows = log(5)
    forged = canonical_form(json.loads(rows[2][2]) | {"action": "nothing"})
    rows[2] = (2, "acme", forged, hashlib.sha256(forged).digest())

    [finding] = findings(rows)

    assert finding.at == 3
    assert finding.expected == entry_hash(forged)


def test_a_missing_entry_is_named() -> None:
    rows = log(6)
    del rows[2:4]

    found = findings(rows)

    assert found[0].message == "entries 2 to 3 are missing"
    assert {finding.at for finding in found} == {4}


def test_an_entry_moved_to_another_tenant_is_found() -> None:
    rows = log(3)
    rows[1] = (1, "globex", *rows[1][2:])

    [finding] = findings(rows)

    assert (finding.at, "tenant" in finding.message) == (1, True)


def test_two_swapped_entries_are_found() -> None:
    rows = log(4)
    rows[1], rows[2] = (1, *rows[2][1:]), (2, *rows[1][1:])

    assert {finding.at for finding in findings(rows)} == {1, 2, 3}


def checkpointed(count: int) -> tuple[ChainVerifier, dict[str, str | int | bytes]]:
    walk = ChainVerifier()
    for row in log(count):
        assert not list(walk.verify_entry(*row))
    root = walk.tree.root()
    return walk, {
        "at": count - 1,
        "root": root.hex(),
        "signature": KEY.sign(root),
        "public_key": KEY.public_key,
        "peaks": walk.tree.peaks,
    }


def test_a_checkpoint_over_unchanged_entries_has_no_faults() -> None:
    walk, row = checkpointed(7)

    assert list(walk.verify_checkpoint(**row)) == []  # type: ignore[arg-type]  # as the row has them


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", 5),
        ("root", "00" * 32),
        ("root", "x"),
        ("signature", KEY.sign(b"another root".ljust(32))),
        ("public_key", CheckpointKey(b"y" * 32).public_key),
        ("peaks", b"x" * 96),
    ],
)
def test_a_change_of_any_part_of_a_checkpoint_is_found(name: str, value: str | int | bytes) -> None:
    walk, row = checkpointed(7)

    found = list(walk.verify_checkpoint(**(row | {name: value})))  # type: ignore[arg-type]  # as above

    assert found
    assert all(finding.kind == "checkpoint" for finding in found)
