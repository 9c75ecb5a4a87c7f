"""The toolbox: all tools of a host by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from wopr.agents.mcp.servers import McpServer
from wopr.agents.tools.tool import SecretResolver, Tool
from wopr.store.port import SHARED


class ToolSource(Protocol):
    """A source of tools outside this process, such as MCP servers."""

    def find(self, tenant: str, name: str) -> Tool | None:
        """Return a known tool, or None."""
        ...

    def knows(self, tenant: str, name: str) -> bool:
        """Return False for a tool of this source whose server has not listed its tools yet."""
        ...

    def names(self, tenant: str) -> Iterable[str]:
        """Return the names of the known tools."""
        ...

    async def prepare(self, tenant: str, names: Collection[str], secret: SecretResolver) -> None:
        """List these tools if they belong to this source. Raises `ToolFault` if that fails."""
        ...


class Toolbox:
    """Tools by name, shared or of one tenant.

    The toolbox grants no permission: an agent may call the tools of its allowlist, and a node the
    tools of its config.
    """

    def __init__(self, tools: Iterable[Tool] = (), servers: Iterable[McpServer] = ()) -> None:
        # MCP servers that an app declares. The host opens them and adds a source for them.
        self.servers = tuple(servers)
        self._sources: list[ToolSource] = []
        self._tools: dict[tuple[str, str], Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool, *, tenant: str = SHARED) -> None:
        """Add a tool. Raises `ValueError` if the name is taken."""
        if (tenant, tool.name) in self._tools:
            raise ValueError(f"There is already a tool {tool.name}.")
        self._tools[tenant, tool.name] = tool

    @property
    def function_names(self) -> tuple[str, ...]:
        """The names of the shared tools that are code of this process."""
        return tuple(sorted(name for owner, name in self._tools if owner == SHARED))

    def find(self, tenant: str, name: str) -> Tool | None:
        """Return the tool of that name, the tenant's own before a shared one."""
        own = self._tools.get((tenant, name)) or self._tools.get((SHARED, name))
        found = (source.find(tenant, name) for source in self._sources)
        return own or next((tool for tool in found if tool is not None), None)

    def knows(self, tenant: str, name: str) -> bool:
        """Return False for a tool whose source has not listed it yet."""
        return all(source.knows(tenant, name) for source in self._sources)

    def add_source(self, source: ToolSource) -> None:
        """Add a source of tools."""
        self._sources.append(source)

    async def prepare(self, tenant: str, names: Collection[str], secret: SecretResolver) -> None:
        """List these tools in their sources, so that `find` has them."""
        for source in self._sources:
            await source.prepare(tenant, names, secret)

    def names(self, tenant: str) -> Iterator[str]:
        """Yield the names of all tools that a tenant can use."""
        own = {name for owner, name in self._tools if owner in (tenant, SHARED)}
        yield from sorted(own.union(*(source.names(tenant) for source in self._sources)))
