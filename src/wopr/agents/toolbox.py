"""The toolbox: every tool that a host can call for its agents, by the name that allowlists use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from wopr.agents.mcp_servers import McpServer
from wopr.nodes.tools import SecretOf, Tool, ToolContext, ToolFault, Transport
from wopr.store.port import SHARED

__all__ = ["Tool", "ToolContext", "ToolFault", "ToolSource", "Toolbox", "Transport"]


class ToolSource(Protocol):
    """Tools that are had from elsewhere, and may have to be asked for."""

    def find(self, tenant: str, name: str) -> Tool | None:
        """A tool that is known by now."""
        ...

    def knows(self, tenant: str, name: str) -> bool:
        """Whether `find` can tell; False for a tool of this source that is yet to be asked for."""
        ...

    def names(self, tenant: str) -> Iterable[str]:
        """The tools that are known by now."""
        ...

    async def prepare(self, tenant: str, names: Collection[str], secret: SecretOf) -> None:
        """Get to know these tools, if they are of this source; raises `ToolFault` if that fails."""
        ...


class Toolbox:
    """Tools by name: those of all tenants, and those that are one tenant's alone.

    Being in the box permits nothing: an agent calls what its manifest's allowlist names, and a
    node what its config names.
    """

    def __init__(self, tools: Iterable[Tool] = (), servers: Iterable[McpServer] = ()) -> None:
        # Servers that a program declares; the host opens them, and adds a source for them.
        self.servers = tuple(servers)
        self._sources: list[ToolSource] = []
        self._tools: dict[tuple[str, str], Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool, *, tenant: str = SHARED) -> None:
        """Put a tool in the box; a second one of that name is refused."""
        if (tenant, tool.name) in self._tools:
            raise ValueError(f"there is a tool {tool.name} already")
        self._tools[tenant, tool.name] = tool

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the tools that are code of this process, for every tenant."""
        return tuple(sorted(name for owner, name in self._tools if owner == SHARED))

    def find(self, tenant: str, name: str) -> Tool | None:
        """The tool of that name: the tenant's own before the one that all share."""
        own = self._tools.get((tenant, name)) or self._tools.get((SHARED, name))
        found = (source.find(tenant, name) for source in self._sources)
        return own or next((tool for tool in found if tool is not None), None)

    def knows(self, tenant: str, name: str) -> bool:
        """Whether `find` can tell; False for a tool whose source is yet to be asked."""
        return all(source.knows(tenant, name) for source in self._sources)

    def add_source(self, source: ToolSource) -> None:
        """Look for tools there too."""
        self._sources.append(source)

    async def prepare(self, tenant: str, names: Collection[str], secret: SecretOf) -> None:
        """Have the sources get to know these tools, so that `find` has them."""
        for source in self._sources:
            await source.prepare(tenant, names, secret)

    def names(self, tenant: str) -> Iterator[str]:
        """What a tenant's agents could be allowed to call."""
        own = {name for owner, name in self._tools if owner in (tenant, SHARED)}
        yield from sorted(own.union(*(source.names(tenant) for source in self._sources)))
