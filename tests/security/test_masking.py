from __future__ import annotations

import hashlib

from wopr.security.masking import OMIT, mask, mask_members


def test_mask_writes_the_mark() -> None:
    assert mask({"any": "thing"}, "mask") == "[REDACTED]"


def test_omit_writes_nothing() -> None:
    assert mask("x", "omit") is OMIT


def test_hash_writes_the_digest_of_the_value_at_any_key_order() -> None:
    expected = "sha256:" + hashlib.sha256(b'{"a":1,"b":[true,null]}').hexdigest()

    assert mask({"b": [True, None], "a": 1}, "hash") == expected
    assert mask({"a": 1, "b": [True, None]}, "hash") == expected


def test_passthrough_writes_the_value_itself() -> None:
    value = {"a": 1}

    assert mask(value, "passthrough") is value


def test_only_the_named_members_are_masked() -> None:
    outputs = {"card": "4929", "count": 2}

    assert mask_members(outputs, {"card"}, "mask") == {"card": "[REDACTED]", "count": 2}
    assert mask_members(outputs, {"card"}, "omit") == {"count": 2}
    assert outputs == {"card": "4929", "count": 2}


def test_a_null_member_is_masked_and_not_dropped() -> None:
    assert mask_members({"card": None}, ["card"], "mask") == {"card": "[REDACTED]"}


def test_an_object_without_the_named_members_is_returned_unchanged() -> None:
    outputs = {"count": 2}

    assert mask_members(outputs, {"card"}, "mask") is outputs
    assert mask_members(outputs, {"count"}, "passthrough") is outputs
