"""What a program adds to a host: node types, tools, agents and workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from wopr.agents.mcp_servers import McpServer
from wopr.agents.toolbox import Toolbox
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.models import Models
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.nodes.tools import Tool
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import NotFound, WoprError
from wopr.runtime.host import Host, running_host
from wopr.runtime.numbering import is_numbered, same_content, versioned
from wopr.runtime.settings import Settings
from wopr.runtime.sources import Sources
from wopr.store.port import SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """Everything that one program adds; agents and workflows as the documents of the wire."""

    node_types: tuple[NodeType, ...] = ()
    tools: tuple[Tool, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    agents: tuple[JsonObject, ...] = ()
    workflows: tuple[JsonObject, ...] = ()
    # Models of the program's own, which answer in place of those that the settings name.
    models: Models | None = None
    # The version of the program's code, for settings that name none.
    code_version: str = ""


@asynccontextmanager
async def contributed_host(
    settings: Settings,
    contributions: Contributions,
    *,
    sources: Sources | None = None,
    models: Models | None = None,
) -> AsyncGenerator[Host, None]:
    """Run a host with everything that a program adds to it.

    `models` come before those of the program.
    """
    version = settings.code_version or contributions.code_version
    settings = replace(settings, code_version=version)
    registry = registry_with(contributions.node_types, conformance=settings.conformance)
    toolbox = Toolbox(contributions.tools, contributions.mcp_servers)
    refused: WoprError | None = None
    async with running_host(
        settings, sources, registry, models=models or contributions.models, toolbox=toolbox
    ) as host:
        try:
            await install(host, contributions)
        except WoprError as refusal:
            # Raised again outside of the host's task group, which would wrap it.
            refused = refusal
        else:
            yield host
    if refused is not None:
        raise refused


def registry_with(node_types: Iterable[NodeType], *, conformance: bool = False) -> NodeRegistry:
    """The node types of every host and these; an id that is taken is refused."""
    registry = builtin_registry(with_conformance=conformance)
    for node_type in node_types:
        registry.add(node_type)
    return registry


async def install(host: Host, contributions: Contributions) -> None:
    """Register agents and workflows for every tenant, as new versions where they have changed."""
    for manifest in contributions.agents:
        newest = await _newest_agent(host, str(manifest["agentId"]))
        if (document := _renumbered(manifest, newest)) is not None:
            await host.agents.register(SHARED, document)
    alongside = {str(definition["id"]) for definition in contributions.workflows}
    for definition in contributions.workflows:
        newest = await _newest_workflow(host, str(definition["id"]))
        if (document := _renumbered(definition, newest)) is not None:
            await host.library.register(SHARED, document, alongside=alongside)


def _renumbered(document: JsonObject, newest: str | None) -> JsonObject | None:
    """The document to register, or None when the newest version is the same."""
    if not is_numbered(document):
        return document
    if newest is not None and same_content(newest, document):
        return None
    return versioned(document, newest)


async def _newest_agent(host: Host, agent_id: str) -> str | None:
    try:
        return (await host.agents.agent(SHARED, agent_id)).manifest.version
    except NotFound:
        return None


async def _newest_workflow(host: Host, workflow_id: str) -> str | None:
    try:
        return (await host.library.row(SHARED, workflow_id)).version
    except NotFound:
        return None
