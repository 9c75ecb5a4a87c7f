from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.idempotency_keys import logical_invocation_id, request_digest, response_key_hash


def test_an_invocation_id_follows_the_recipe_of_the_protocol() -> None:
    recipe = b"openwop:activity:v2\x00acme\x00run-1\x00charge\x003\x00stripe"
    expected = base64.urlsafe_b64encode(hashlib.sha256(recipe).digest()).decode().rstrip("=")

    assert logical_invocation_id("acme", "run-1", "charge", 3, "stripe") == expected
    assert len(expected) == 43


def test_no_two_lists_of_parts_give_the_same_id() -> None:
    ids = {
        logical_invocation_id("acme", "run-1", "charge", 0, "stripe"),
        logical_invocation_id("acme", "run-1", "charge", 1, "stripe"),
        logical_invocation_id("globex", "run-1", "charge", 0, "stripe"),
        logical_invocation_id("acme", "run-1charge", "", 0, "stripe"),
    }

    assert len(ids) == 4
    with pytest.raises(ValueError, match="NUL"):
        logical_invocation_id("acme\0run-1", "", "charge", 0, "stripe")


def test_an_idempotency_key_is_the_hash_of_tenant_endpoint_and_key() -> None:
    expected = hashlib.sha256(b"acme:POST /v1/runs:k-1").digest()

    assert response_key_hash("acme", "POST /v1/runs", "k-1") == expected


@given(st.text(alphabet="a:%3A", max_size=6), st.text(alphabet="a:%3A", max_size=6), st.text())
def test_the_same_key_of_another_tenant_or_endpoint_is_another_key(
    tenant: str, endpoint: str, key: str
) -> None:
    own = response_key_hash(tenant, endpoint, key)

    assert own != response_key_hash(tenant + "x", endpoint, key)
    assert own != response_key_hash(tenant, endpoint + "x", key)
    assert own != response_key_hash(f"{tenant}:{endpoint}", "", key)
    assert own != response_key_hash(tenant, f"{endpoint}:x", key.removeprefix("x:"))


def test_key_order_and_white_space_do_not_change_a_request() -> None:
    assert request_digest(b'{"a": {"c": 1, "b": [1, 2]}, "d": "x"}') == request_digest(
        b'{"d":"x","a":{"b":[1,2],"c":1}}\n'
    )


@pytest.mark.parametrize("other", [b'{"a":[2,1]}', b'{"a":[1,2],"b":null}', b'{"a":"[1,2]"}', b""])
def test_another_value_is_another_request(other: bytes) -> None:
    assert request_digest(b'{"a":[1,2]}') != request_digest(other)


@pytest.mark.parametrize("body", [b"", b"not json", b"\xff\xfe", b"{", b"[" * 100_000])
def test_a_body_that_is_not_json_is_compared_byte_for_byte(body: bytes) -> None:
    assert request_digest(body) == hashlib.sha256(body).digest()
