"""The MCP servers of a host: declared by its operator, opened when a run first needs one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.to_thread

from wopr.agents.mcp_servers import McpServer, check_names, read_servers
from wopr.agents.toolbox import Toolbox
from wopr.protocol.errors import Refused
from wopr.runtime.definition_files import DefinitionUnreadable, load_definition
from wopr.runtime.settings import Settings
from wopr.runtime.subprocess_pool import SubprocessPool

LISTINGS = "mcp"


def is_mcp_installed() -> bool:
    """Whether the package that speaks MCP is there."""
    return find_spec("mcp") is not None


def serves_mcp(settings: Settings) -> bool:
    """Whether MCP clients can reach this host."""
    return settings.mcp and is_mcp_installed()


@asynccontextmanager
async def with_mcp_tools(
    settings: Settings, toolbox: Toolbox, subprocesses: SubprocessPool
) -> AsyncGenerator[Toolbox, None]:
    """Have a toolbox hold the tools of all declared servers, for as long as the host runs."""
    servers = [*toolbox.servers, *await anyio.to_thread.run_sync(_declared, settings.mcp_servers)]
    if not servers:
        yield toolbox
        return
    _check(servers)
    # Only a host with servers needs these, and they take a while to load.
    from wopr.agents.mcp_listings import Listings
    from wopr.agents.mcp_sessions import McpSessions
    from wopr.agents.mcp_tools import McpTools

    listings = Listings(settings.data_dir / LISTINGS)
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        toolbox.add_source(McpTools(servers, McpSessions(tasks), listings, subprocesses.run))
        try:
            yield toolbox
        except Exception as failure:
            # Raised again outside of the task group, which would wrap it.
            failed = failure
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _declared(file: str) -> list[McpServer]:
    if not file:
        return []
    try:
        return read_servers(load_definition(Path(file)))
    except DefinitionUnreadable as fault:
        raise Refused(f"mcp_servers: {fault}", field="mcp_servers") from fault
    except ValueError as fault:
        raise Refused(f"mcp_servers: {file}: {fault}", field="mcp_servers") from fault


def _check(servers: list[McpServer]) -> None:
    if not is_mcp_installed():
        raise Refused("MCP servers need the package mcp: install wopr[mcp]", field="mcp_servers")
    try:
        check_names(servers)
    except ValueError as fault:
        raise Refused(f"mcp_servers: {fault}", field="mcp_servers") from fault
