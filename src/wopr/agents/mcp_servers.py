"""MCP servers as sources of tools: what an operator declares of one, and how its tools are named.

A workflow or a tenant names a tool, and never a command or an address: what the host starts and
dials for MCP is the operator's alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from wopr.protocol.documents import UNSET, Closed, JsonObject, NonEmpty, Unset

# The scope of tools of MCP servers, in the names that allowlists use.
SCOPE: Final = "mcp"
# The longest that a server may take for one call, unless its declaration says otherwise.
CALL_MS: Final = 60_000

ServerName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
ToolName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_./-]{1,128}$")]


class McpServer(Closed, frozen=True, kw_only=True):
    """A server: a command that speaks MCP over its standard streams, or an HTTP address.

    `tools` are those that may be called at all; without it all that the server has. Being declared
    permits nothing: an agent calls what its allowlist names. `scopes` are what the key that
    started a run must be allowed. Credentials are named, never written here: `secretEnv` puts
    them into variables of the command, `credentialsRef` into a header of the requests.
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
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = CALL_MS

    def __post_init__(self) -> None:
        if bool(self.command) == (not isinstance(self.url, Unset)):
            raise ValueError(f"server {self.name}: give either command or url")
        if not isinstance(self.url, Unset) and not _is_address(self.url):
            raise ValueError(f"server {self.name}: url must be an absolute http or https URL")
        misplaced = [*_misplaced(self)]
        if misplaced:
            kind = "command" if self.command else "url"
            raise ValueError(
                f"server {self.name}: {', '.join(misplaced)} cannot stand beside {kind}"
            )

    @property
    def host(self) -> str:
        """The host that it is reached at; empty for a command."""
        return "" if isinstance(self.url, Unset) else urlsplit(self.url).hostname or ""

    @property
    def tool_names(self) -> list[str]:
        """What allowlists call the tools that the declaration names."""
        return [] if isinstance(self.tools, Unset) else [self.tool(name) for name in self.tools]

    def tool(self, name: str) -> str:
        """What allowlists call one of its tools."""
        return f"{SCOPE}:{self.name}.{name}"

    def has(self, name: str) -> bool:
        """Whether the operator lets this tool be called at all."""
        return isinstance(self.tools, Unset) or name in self.tools

    def serves(self, tenant: str) -> bool:
        """Whether it is there for a tenant."""
        return not self.tenants or tenant in self.tenants


class McpServers(Closed, frozen=True, kw_only=True):
    """The file that declares servers."""

    servers: list[McpServer]


def read_servers(document: JsonObject) -> list[McpServer]:
    """Read a declaration file's content; raises `ValueError` that names the place."""
    servers = msgspec.convert(document, McpServers).servers
    check_names(servers)
    return servers


def check_names(servers: list[McpServer]) -> None:
    """Refuse two servers of one name."""
    names = [server.name for server in servers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"there are two MCP servers named {', '.join(twice)}")


def split_name(tool_name: str) -> tuple[str, str] | None:
    """The server and the tool of a name such as `mcp:notes.search`; None for other tools."""
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
    """Members that mean nothing for this kind of server."""
    for name, is_given, is_for_command in (
        ("env", bool(server.env), True),
        ("secretEnv", bool(server.secret_env), True),
        ("cwd", not isinstance(server.cwd, Unset), True),
        ("headers", bool(server.headers), False),
        ("credentialsRef", not isinstance(server.credentials_ref, Unset), False),
    ):
        if is_given and is_for_command != bool(server.command):
            yield name
