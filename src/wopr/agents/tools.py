"""Tool permission: which tools an agent may call, for whom, how often, and what is noted of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from wopr.protocol.documents import Json
from wopr.protocol.errors import Forbidden, RateLimited, Refused
from wopr.security.buckets import TokenBuckets
from wopr.security.digest import canonical_digest

Decision: TypeAlias = Literal["ok", "forbidden"]
# Calls of a tool by a principal: one bucket per (principal, tool name).
ToolLimits: TypeAlias = TokenBuckets[tuple[str, str]]


def allowed(allowlist: Collection[str] | None, tool_name: str) -> bool:
    """Tell whether the agent may call the tool: named in full, or not at all. No list, no tools."""
    return allowlist is not None and tool_name in allowlist


def decide(
    principal_scopes: Collection[str] | None, required_scopes: Collection[str] | None
) -> Decision:
    """Decide whether a principal may have a tool called. What cannot be decided is forbidden."""
    if principal_scopes is None or required_scopes is None:
        return "forbidden"
    return "ok" if set(required_scopes) <= set(principal_scopes) else "forbidden"


def forbidden_tool(tool_name: str, required_scopes: Collection[str] = ()) -> Forbidden:
    """The error of a call that was not allowed, and so was not made."""
    return Forbidden(
        f"the tool {tool_name} may not be called here",
        scope="tool",
        toolName=tool_name,
        requiredScopes=sorted(required_scopes),
    )


def exhausted_tool(tool_name: str, retry_after: int) -> RateLimited:
    """The error of a call that came too soon, and so was not made."""
    return RateLimited(
        f"the tool {tool_name} was called too often",
        retry_after=retry_after,
        scope="tool",
        toolName=tool_name,
    )


def args_hash(args: Json) -> str:
    """The SHA-256 of the canonical JSON (RFC 8785) of arguments that are redacted already."""
    try:
        return canonical_digest(args)
    except ValueError as fault:
        raise Refused(f"tool arguments that are not JSON: {fault}", field="args") from fault
