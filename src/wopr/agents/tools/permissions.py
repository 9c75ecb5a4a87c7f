"""Tool permissions: allowlist, scopes and rate limits of tool calls."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from wopr.protocol.documents import Json
from wopr.protocol.errors import Forbidden, RateLimited, Refused
from wopr.security.buckets import TokenBuckets
from wopr.security.digest import canonical_digest

Permission: TypeAlias = Literal["ok", "forbidden"]
# Calls of a tool by a principal: one bucket per (principal, tool name).
ToolLimits: TypeAlias = TokenBuckets[tuple[str, str]]


def is_allowed(allowlist: Collection[str] | None, tool_name: str) -> bool:
    """Return whether the allowlist has the tool's full name. No allowlist permits nothing."""
    return allowlist is not None and tool_name in allowlist


def permission_of(
    principal_scopes: Collection[str] | None, required_scopes: Collection[str] | None
) -> Permission:
    """Return whether a principal's scopes permit a call. Unknown scopes forbid it."""
    if principal_scopes is None or required_scopes is None:
        return "forbidden"
    return "ok" if set(required_scopes) <= set(principal_scopes) else "forbidden"


def forbidden_tool_error(tool_name: str, required_scopes: Collection[str] = ()) -> Forbidden:
    """Return the error of a call that is not allowed."""
    return Forbidden(
        f"The tool {tool_name} is not allowed.",
        scope="tool",
        toolName=tool_name,
        requiredScopes=sorted(required_scopes),
    )


def rate_limited_tool_error(tool_name: str, retry_after: int) -> RateLimited:
    """Return the error of a call that exceeds the rate limit."""
    return RateLimited(
        f"The tool {tool_name} was called too often. Try again in {retry_after} seconds.",
        retry_after=retry_after,
        scope="tool",
        toolName=tool_name,
    )


def args_hash(args: Json) -> str:
    """Return the SHA-256 of the canonical JSON (RFC 8785) of redacted arguments."""
    try:
        return canonical_digest(args)
    except ValueError as fault:
        raise Refused(f"The tool arguments are not JSON: {fault}", field="args") from fault
