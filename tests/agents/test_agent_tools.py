from __future__ import annotations

import math

import pytest

from wopr.agents.tools.permissions import (
    args_hash,
    forbidden_tool_error,
    is_allowed,
    permission_of,
    rate_limited_tool_error,
)
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused


def test_only_a_tool_on_the_list_may_be_called() -> None:
    listed = frozenset({"mcp:search", "openwop:ask"})

    assert is_allowed(listed, "mcp:search")
    for name in ("mcp:searcher", "mcp:", "search", "MCP:search", "*", ""):
        assert not is_allowed(listed, name)


@pytest.mark.parametrize("nothing", [None, frozenset[str](), frozenset({"*"})])
def test_without_a_list_no_tool_may_be_called(nothing: frozenset[str] | None) -> None:
    assert not is_allowed(nothing, "mcp:search")


def test_a_principal_needs_every_scope_that_the_tool_requires() -> None:
    assert permission_of({"db:read", "db:write"}, ["db:write"]) == "ok"
    assert permission_of(set(), []) == "ok"
    assert permission_of({"db:read"}, ["db:read", "db:write"]) == "forbidden"
    assert permission_of(set(), ["db:write"]) == "forbidden"


def test_an_undecidable_call_is_forbidden() -> None:
    assert permission_of({"db:write"}, None) == "forbidden"
    assert permission_of(None, ["db:write"]) == "forbidden"
    assert permission_of(None, []) == "forbidden"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ({"q": "openwop"}, "9458af8c77ede919beb4dd201de70ea7909225488c9e925190a9b4e585cb9d6f"),
    ],
)
def test_the_hash_of_arguments_matches_the_published_vector(args: Json, expected: str) -> None:
    assert args_hash(args) == expected


def test_the_key_order_does_not_change_the_hash() -> None:
    assert args_hash({"a": 1, "b": [1.0, {"d": None, "c": "é"}]}) == args_hash(
        {"b": [1, {"c": "é", "d": None}], "a": 1.0}
    )


def test_a_number_beyond_double_precision_is_hashed_as_a_double() -> None:
    assert args_hash([2**60 + 1]) == args_hash([2.0**60])
    assert args_hash([2**53 - 1]) != args_hash([2**53 - 2])


@pytest.mark.parametrize("args", [math.nan, [math.inf], 10**400, "\ud800", {1: 2}, b"x"])
def test_arguments_that_are_not_json_are_refused(args: Json) -> None:
    with pytest.raises(Refused) as refused:
        args_hash(args)

    assert refused.value.details["field"] == "args"


def test_arguments_nested_too_deeply_are_refused() -> None:
    knot: list[Json] = []
    knot.append(knot)

    with pytest.raises(Refused):
        args_hash(knot)


def test_the_errors_name_the_tool_and_the_required_scopes() -> None:
    forbidden = forbidden_tool_error("mcp:a", ["db:write"])
    limited = rate_limited_tool_error("mcp:a", 3)

    assert (forbidden.status, forbidden.details) == (
        403,
        {"scope": "tool", "toolName": "mcp:a", "requiredScopes": ["db:write"]},
    )
    assert (limited.status, limited.retry_after, limited.details["scope"]) == (429, 3, "tool")
