from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wopr.security.tokens import InterruptToken, read_interrupt_token, sign_interrupt_token

KEY = b"k" * 32
OLD = b"o" * 32
TOKEN = InterruptToken(
    tenant="acme",
    run_id="run-1",
    node_id="gate",
    interrupt_id="int-gate:0",
    expires_at=1_800_000_000_000,
    intent="resolve",
)


def test_a_token_is_its_payload_and_the_mac_of_it() -> None:
    encoded, _, signature = sign_interrupt_token(TOKEN, KEY).partition(".")

    payload = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    assert json.loads(payload) == {
        "tenant": "acme",
        "runId": "run-1",
        "nodeId": "gate",
        "interruptId": "int-gate:0",
        "expiresAt": 1_800_000_000_000,
        "intent": "resolve",
    }
    assert signature == hmac.new(KEY, payload, hashlib.sha256).hexdigest()


def test_a_signed_token_is_parsed() -> None:
    assert read_interrupt_token(sign_interrupt_token(TOKEN, KEY), [KEY]) == TOKEN


def test_an_old_key_verifies_during_a_key_change() -> None:
    assert read_interrupt_token(sign_interrupt_token(TOKEN, OLD), [KEY, OLD]) == TOKEN
    assert read_interrupt_token(sign_interrupt_token(TOKEN, OLD), [KEY]) is None
    assert read_interrupt_token(sign_interrupt_token(TOKEN, KEY), []) is None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(sign_interrupt_token(TOKEN, KEY)) - 1), st.characters())
def test_a_token_with_one_changed_character_is_invalid(place: int, other: str) -> None:
    text = sign_interrupt_token(TOKEN, KEY)

    touched = text[:place] + other + text[place + 1 :]

    assert (read_interrupt_token(touched, [KEY]) is None) is (touched != text)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(sign_interrupt_token(TOKEN, KEY))), st.text(min_size=1, max_size=3))
def test_a_token_with_inserted_text_is_invalid(place: int, more: str) -> None:
    text = sign_interrupt_token(TOKEN, KEY)

    assert read_interrupt_token(text[:place] + more + text[place:], [KEY]) is None


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_no_other_text_is_a_token(text: str) -> None:
    assert read_interrupt_token(text, [KEY]) is None


def test_a_signed_payload_of_another_form_is_invalid() -> None:
    for payload in (b"{}", b"[]", b"nonsense", b'{"intent":"resolve"}', b"\xff"):
        signature = hmac.new(KEY, payload, hashlib.sha256).hexdigest()
        encoded = base64.urlsafe_b64encode(payload).decode().rstrip("=")
        assert read_interrupt_token(f"{encoded}.{signature}", [KEY]) is None


def test_each_key_is_compared_whole_and_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    text = sign_interrupt_token(TOKEN, KEY)

    found = read_interrupt_token(text, [KEY, OLD, KEY])

    assert found == TOKEN
    assert len(compared) == 3
    assert all(given == text.encode() for _, given in compared)
    assert all(len(expected) == len(text) for expected, _ in compared)
