"""Node types, tools, agents and workflows that a program adds to a host."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from wopr.agents.mcp.servers import McpServer
from wopr.agents.models.port import Models
from wopr.agents.tools.tool import Tool
from wopr.agents.tools.toolbox import Toolbox
from wopr.host.assembly import running_host
from wopr.host.host import Host
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound, WoprError
from wopr.runs.definitions.numbered_versions import add_version, has_content, is_numbered
from wopr.store.port import SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """The contributions of one program. Agents and workflows are JSON documents."""

    node_types: tuple[NodeType, ...] = ()
    tools: tuple[Tool, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    agents: tuple[JsonObject, ...] = ()
    workflows: tuple[JsonObject, ...] = ()
    # Models of the program, which replace the configured providers.
    models: Models | None = None
    # The code version of the program, unless the settings have one.
    code_version: str = ""


@asynccontextmanager
async def contributed_host(
    settings: Settings,
    contributions: Contributions,
    *,
    sources: Sources | None = None,
    models: Models | None = None,
) -> AsyncGenerator[Host, None]:
    """Run a host with the contributions of a program. `models` replace those of the program."""
    version = settings.code_version or contributions.code_version
    settings = replace(settings, code_version=version)
    registry = registry_with(contributions.node_types, conformance=settings.conformance)
    toolbox = Toolbox(contributions.tools, contributions.mcp_servers)
    refused: WoprError | None = None
    async with running_host(
        settings, sources, registry, models=models or contributions.models, toolbox=toolbox
    ) as host:
        try:
            await register_contributions(host, contributions)
        except WoprError as refusal:
            # Raised again outside the host's task group, which would wrap it in a group.
            refused = refusal
        else:
            yield host
    if refused is not None:
        raise refused


def registry_with(node_types: Iterable[NodeType], *, conformance: bool = False) -> NodeRegistry:
    """Return a registry of the built-in node types and these. A duplicate id is refused."""
    registry = builtin_registry(with_conformance=conformance)
    for node_type in node_types:
        registry.add(node_type)
    return registry


async def register_contributions(host: Host, contributions: Contributions) -> None:
    """Register agents and workflows for every tenant. A changed document gets a new version."""
    for manifest in contributions.agents:
        newest = await _newest_agent_version(host, str(manifest["agentId"]))
        if (document := _to_register(manifest, newest)) is not None:
            await host.agents.register(SHARED, document)
    alongside = {str(definition["id"]) for definition in contributions.workflows}
    for definition in contributions.workflows:
        newest = await _newest_workflow_version(host, str(definition["id"]))
        if (document := _to_register(definition, newest)) is not None:
            await host.library.register(SHARED, document, alongside=alongside)


def _to_register(document: JsonObject, newest: str | None) -> JsonObject | None:
    """Return the document to register, or None if it equals the newest version."""
    if not is_numbered(document):
        return document
    if newest is not None and has_content(newest, document):
        return None
    return add_version(document, newest)


async def _newest_agent_version(host: Host, agent_id: str) -> str | None:
    try:
        return (await host.agents.agent(SHARED, agent_id)).manifest.version
    except NotFound:
        return None


async def _newest_workflow_version(host: Host, workflow_id: str) -> str | None:
    try:
        return (await host.library.row(SHARED, workflow_id)).version
    except NotFound:
        return None
