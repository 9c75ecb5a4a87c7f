"""Declarations of MCP servers, and the names of their tools.

Only the operator declares commands and addresses. Workflows and tenants name tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset

# The scope of tools of MCP servers in allowlists.
SCOPE: Final = "mcp"
# The default time limit of one call.
DEFAULT_TIMEOUT_MS: Final = 60_000

ServerName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
ToolName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_./-]{1,128}$")]


class McpServer(Closed, frozen=True, kw_only=True):
    """An MCP server: a command with MCP on its standard streams, or an HTTP address.

    `tools` limits the tools that may be called; default: all. An agent may call only the tools of
    its allowlist. `scopes` are required of the key that started the run. Credentials are given by
    name: `secretEnv` sets environment variables of the command, `credentialsRef` a header.
    """

    name: ServerName
    command: list[NonEmpty] = []
    env: dict[str, str] = {}
    secret_env: dict[str, NonEmpty] = {}
    cwd: NonEmpty | Unset = UNSET
    url: NonEmpty | Unset = UNSET
    headers: dict[str, str] = {}
    credentials_ref: NonEmpty | Unset = UNSET
    credential_header: NonEmpty = "Authorization"
    credential_prefix: str = "Bearer "
    tools: list[ToolName] | Unset = UNSET
    tenants: list[NonEmpty] = []
    scopes: list[NonEmpty] = []
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        if bool(self.command) == (not isinstance(self.url, Unset)):
            raise ValueError(f"server {self.name}: set either command or url")
        if not isinstance(self.url, Unset) and not _is_address(self.url):
            raise ValueError(f"server {self.name}: url must be an absolute http or https URL")
        misplaced = [*_misplaced(self)]
        if misplaced:
            kind = "command" if self.command else "url"
            raise ValueError(
                f"server {self.name}: {', '.join(misplaced)} cannot be combined with {kind}"
            )

    @property
    def host(self) -> str:
        """The host of the URL; empty for a command."""
        return "" if isinstance(self.url, Unset) else urlsplit(self.url).hostname or ""

    @property
    def tool_names(self) -> list[str]:
        """The allowlist names of the declared tools."""
        return [] if isinstance(self.tools, Unset) else [self.tool(name) for name in self.tools]

    def tool(self, name: str) -> str:
        """Return the allowlist name of a tool."""
        return f"{SCOPE}:{self.name}.{name}"

    def has(self, name: str) -> bool:
        """Return whether the declaration permits this tool."""
        return isinstance(self.tools, Unset) or name in self.tools

    def serves(self, tenant: str) -> bool:
        """Return whether a tenant may use the server."""
        return not self.tenants or tenant in self.tenants


class McpServers(Closed, frozen=True, kw_only=True):
    """The file that declares servers."""

    servers: list[McpServer]


def read_servers(document: JsonObject) -> list[McpServer]:
    """Decode the content of a declaration file. Raises `ValueError` with the path of the fault."""
    servers = msgspec.convert(document, McpServers).servers
    check_names(servers)
    return servers


def check_names(servers: list[McpServer]) -> None:
    """Raise `ValueError` for two servers with the same name."""
    names = [server.name for server in servers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two MCP servers have the same name: {', '.join(twice)}")


def split_name(tool_name: str) -> tuple[str, str] | None:
    """Split a name such as `mcp:notes.search` into server and tool; None for other tools."""
    scope, _, rest = tool_name.partition(":")
    server, dot, tool = rest.partition(".")
    return (server, tool) if scope == SCOPE and dot and tool else None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _misplaced(server: McpServer) -> Iterator[str]:
    """Yield the members that do not apply to this kind of server."""
    for name, is_given, is_for_command in (
        ("env", bool(server.env), True),
        ("secretEnv", bool(server.secret_env), True),
        ("cwd", not isinstance(server.cwd, Unset), True),
        ("headers", bool(server.headers), False),
        ("credentialsRef", not isinstance(server.credentials_ref, Unset), False),
    ):
        if is_given and is_for_command != bool(server.command):
            yield name
