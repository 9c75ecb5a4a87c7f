from __future__ import annotations

import hashlib

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from wopr.agents.tools.permissions import (
    args_hash,
    forbidden_tool_error,
    is_allowed,
    permission_of,
    rate_limited_tool_error,
)
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused


@pytest.mark.parametrize(
    ("allowlist", "expected"),
    [
        (["mcp:search"], True),
        ([], False),
        (None, False),
        (["mcp:searching", "mcp:*", "MCP:SEARCH", "mcp"], False),
    ],
)
def test_a_tool_is_allowed_by_its_full_name_only(
    allowlist: list[str] | None, expected: bool
) -> None:
    assert is_allowed(allowlist, "mcp:search") is expected


@pytest.mark.parametrize(
    ("scopes", "required", "expected"),
    [
        ({"db:read", "db:write"}, ["db:write"], "ok"),
        ({"db:read"}, [], "ok"),
        ({"db:read"}, ["db:write"], "forbidden"),
        ({"db:read"}, ["db:read", "db:write"], "forbidden"),
        (None, ["db:write"], "forbidden"),
        (None, [], "forbidden"),
        ({"db:write"}, None, "forbidden"),
    ],
)
def test_an_undecidable_call_is_forbidden(
    scopes: set[str] | None, required: list[str] | None, expected: str
) -> None:
    assert permission_of(scopes, required) == expected


def test_a_refusal_names_the_tool_and_the_required_scopes() -> None:
    error = forbidden_tool_error("mcp:search", {"b", "a"})

    assert (error.code, error.status) == ("forbidden", 403)
    assert error.details == {
        "scope": "tool",
        "toolName": "mcp:search",
        "requiredScopes": ["a", "b"],
    }


def test_a_spent_limit_says_when_to_retry() -> None:
    error = rate_limited_tool_error("mcp:search", 3)

    assert (error.code, error.status, error.retry_after) == ("rate_limited", 429, 3)
    assert error.details["scope"] == "tool"
    assert error.details["toolName"] == "mcp:search"


@pytest.mark.parametrize(
    ("args", "digest"),
    [
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ({"q": "openwop"}, "9458af8c77ede919beb4dd201de70ea7909225488c9e925190a9b4e585cb9d6f"),
    ],
)
def test_arguments_are_hashed_as_in_the_published_vectors(args: Json, digest: str) -> None:
    assert args_hash(args) == digest


@given(st.dictionaries(st.text(max_size=5), st.integers(-(2**53) + 1, 2**53 - 1) | st.text()))
def test_the_hash_covers_the_canonical_bytes(args: dict[str, Json]) -> None:
    backwards = dict(reversed(args.items()))

    assert args_hash(args) == args_hash(backwards)
    try:
        canonical = rfc8785.dumps(args)
    except rfc8785.CanonicalizationError:
        return
    assert args_hash(args) == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize("number", [2**53, 10**300, 1e22])
def test_a_number_that_no_double_can_hold_is_hashed_as_a_double(number: float) -> None:
    assert args_hash({"n": number}) == args_hash({"n": float(number)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "\ud800", object()])
def test_a_value_that_is_not_json_is_refused(value: Json) -> None:
    with pytest.raises(Refused):
        args_hash({"v": value})
