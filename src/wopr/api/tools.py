"""Tools of agents: functions with `@tool`, and the tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

import msgspec

from wopr.agents.mcp.servers import DEFAULT_TIMEOUT_MS, McpServer
from wopr.agents.tools.functions import FunctionTool, function_tool
from wopr.agents.tools.tool import Tool
from wopr.api.errors import WorkflowError

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__wopr_tool__"
# An attribute of agents, tools and workflows with a hint for the error message if one is used as a
# node type.
HINT: Final = "__wopr_hint__"


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *, name: str = "", description: str = "", required_scopes: tuple[str, ...] = ()
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    required_scopes: tuple[str, ...] = (),
) -> F | Callable[[F], F]:
    """Declare a function as a tool of agents.

    The schema of the arguments is derived from the type hints, the description from the docstring.
    The function itself is not changed.

    Args:
        function: The function, async or not. A parameter of the type `ToolContext` gets the
            context of the call.
        name: The tool's name. The default is `local:<function>`.
        description: The description for the model. The default is the docstring.
        required_scopes: Scopes that the API key of the run must have.

    Returns:
        The function, or a decorator if only options are given.

    Raises:
        TypeError: A type hint is missing or has no JSON Schema.

    Example:
        >>> from wopr import tool
        >>> @tool
        ... def add(left: int, right: int) -> int:
        ...     "Add two numbers."
        ...     return left + right
        >>> add(1, 2)
        3
    """

    def declare(function: F) -> F:
        declared = function_tool(
            function, name=name, description=description, required_scopes=required_scopes
        )
        setattr(function, _MARK, declared)
        setattr(function, HINT, "a tool: use it in the `tools` of an agent")
        return function

    return declare if function is None else declare(function)


def tool_in(value: object) -> FunctionTool | None:
    """Return the tool of a function that is declared with `@tool`, or None."""
    found = getattr(value, _MARK, None)
    return found if isinstance(found, FunctionTool) else None


def as_tool(value: Tool | Callable[..., Any]) -> Tool:
    """Return a tool, or the tool of a function."""
    if callable(value):
        return tool_in(value) or function_tool(value)
    return value


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
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> McpServer:
    """Declare an MCP server whose tools agents can call.

    Set either `command`, a program that uses MCP over standard input and output, or `url`.

    Args:
        name: The server's name.
        command: The program and its arguments.
        url: The address of the server.
        tools: The tools that agents may call. Other tools of the server are not available.
        env: Environment variables of the command.
        secret_env: Environment variables of the command, each with the name of a credential of
            the run's tenant.
        credentials_ref: The name of the tenant's credential for the URL.
        scopes: Scopes that the API key of the run must have.
        timeout_ms: The timeout of a call, in milliseconds.

    Returns:
        The server, for `Agent(tools=[server])`. `server.tool("search")` is the name of one tool.

    Raises:
        WorkflowError: The declaration has errors.

    Example:
        >>> from wopr import mcp_server
        >>> files = mcp_server("files", command=["mcp-files", "/srv"], tools=["read"])
        >>> files.tool("read")
        'mcp:files.read'
    """
    for member, value in (("command", command), ("tools", tools), ("scopes", scopes)):
        if isinstance(value, str):
            raise WorkflowError(f"MCP server {name}", [f"{member} must be a list, not {value!r}"])
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
