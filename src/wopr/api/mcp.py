"""`mcp_server`: MCP servers whose tools agents may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from wopr.agents.mcp_servers import CALL_MS, McpServer
from wopr.api.errors import WorkflowError


def mcp_server(
    name: str,
    *,
    command: Sequence[str] = (),
    url: str = "",
    tools: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    secret_env: Mapping[str, str] | None = None,
    credentials_ref: str = "",
    scopes: Sequence[str] = (),
    timeout_ms: int = CALL_MS,
) -> McpServer:
    """Declare an MCP server: a command that speaks it over its standard streams, or an HTTP address.

    `Agent(tools=[server])` lets an agent call the tools that are named here, and no other that the
    server may have; `server.tool("search")` is the name of one. `secret_env` and `credentials_ref`
    name credentials of the tenant that a run is for.
    """
    for member, value in (("command", command), ("tools", tools), ("scopes", scopes)):
        if isinstance(value, str):
            raise WorkflowError(f"MCP server {name}", [f"{member}: give a list, not {value!r}"])
    given: dict[str, Any] = {
        "name": name,
        "command": list(command),
        "url": url,
        "tools": list(tools),
        "env": dict(env or {}),
        "secretEnv": dict(secret_env or {}),
        "credentialsRef": credentials_ref,
        "scopes": list(scopes),
        "timeoutMs": timeout_ms,
    }
    try:
        return msgspec.convert({key: value for key, value in given.items() if value}, McpServer)
    except msgspec.ValidationError as fault:
        raise WorkflowError(f"MCP server {name}", [str(fault)]) from fault
