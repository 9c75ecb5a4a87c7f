from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.encryption import Seal, SealBroken, derive

HOST = bytes(range(32))
NONCE = b"n" * 12


@given(st.binary(), st.binary(min_size=12, max_size=12), st.binary())
def test_an_encrypted_value_is_decrypted_in_its_context(
    text: bytes, nonce: bytes, context: bytes
) -> None:
    seal = Seal(derive(HOST, "webhook secrets"))

    assert seal.open(seal.seal(text, nonce=nonce, context=context), context=context) == text


def test_an_encrypted_value_does_not_show_its_content() -> None:
    assert b"hunter2" not in Seal(HOST).seal(b"hunter2", nonce=NONCE, context=b"")


def test_an_encrypted_value_in_another_context_cannot_be_decrypted() -> None:
    seal = Seal(HOST)
    sealed = seal.seal(b"hunter2", nonce=NONCE, context=b"acme/1")

    with pytest.raises(SealBroken):
        seal.open(sealed, context=b"globex/1")


@pytest.mark.parametrize("position", [0, 1, 5, 13, -1])
def test_a_single_changed_bit_prevents_decryption(position: int) -> None:
    seal = Seal(HOST)
    sealed = bytearray(seal.seal(b"hunter2", nonce=NONCE, context=b"c"))
    sealed[position] ^= 1

    with pytest.raises(SealBroken):
        seal.open(bytes(sealed), context=b"c")


@pytest.mark.parametrize("sealed", [b"", b"\x01", b"\x01" + NONCE, b"\x01" + NONCE + b"short"])
def test_a_truncated_value_cannot_be_decrypted(sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        Seal(HOST).open(sealed, context=b"c")


def test_another_key_cannot_decrypt_it() -> None:
    sealed = Seal(derive(HOST, "one")).seal(b"x", nonce=NONCE, context=b"c")

    with pytest.raises(SealBroken):
        Seal(derive(HOST, "two")).open(sealed, context=b"c")


def test_keys_differ_by_purpose_and_by_host_and_are_stable() -> None:
    assert derive(HOST, "tokens") == derive(HOST, "tokens")
    assert derive(HOST, "tokens") != derive(HOST, "cookies")
    assert derive(HOST, "tokens") != derive(b"x" * 32, "tokens")
    assert len(derive(HOST, "tokens")) == 32


def test_empty_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="host key"):
        derive(b"short", "tokens")
    with pytest.raises(ValueError, match="purpose"):
        derive(HOST, "")
    with pytest.raises(ValueError, match="encryption key"):
        Seal(b"short")
    with pytest.raises(ValueError, match="nonce"):
        Seal(HOST).seal(b"x", nonce=b"short", context=b"")
