"""Resources for agents: model providers, MCP servers, credentials and limits."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from wopr.agents.credentials import Credentials
from wopr.agents.loop.context import Caps
from wopr.agents.mcp.servers import McpServer, check_names, read_servers
from wopr.agents.models.port import Models
from wopr.agents.models.provider_settings import (
    HOSTED_PROVIDERS,
    ProviderSettings,
    is_installed,
    key_names,
)
from wopr.agents.models.providers import ProviderModels
from wopr.agents.tools.toolbox import Toolbox
from wopr.nodes.context import ConfidenceFloor
from wopr.process.settings import Settings
from wopr.process.subprocess_pool import SubprocessPool
from wopr.protocol.errors import Refused
from wopr.protocol.interrupts import is_vendor_kind
from wopr.runs.definitions.checks import ModelFault
from wopr.runs.definitions.files import DefinitionUnreadable, load_definition
from wopr.runs.execution.agent_context import LlmServices
from wopr.runs.quotas import CountedModels, Quotas
from wopr.security.credential_names import SEAL_PURPOSE
from wopr.security.encryption import Seal, derive
from wopr.security.redact import Redactors
from wopr.services.audit.trail import Audit
from wopr.store.port import Store

if TYPE_CHECKING:
    from httpx2 import AsyncClient

# The folder for listings of MCP tools, in the data directory.
LISTINGS = "mcp"
# The status of a run that waits, by the kind of the escalation.
_STATUSES = {"clarify": "waiting-input", "escalate": "waiting-approval"}
# The modules of the hosted providers, which are slow to import. Others use that of OpenAI.
_MODULES: Final = {
    "openai": "pydantic_ai.models.openai",
    "anthropic": "pydantic_ai.models.anthropic",
    "google": "pydantic_ai.models.google",
}


@asynccontextmanager
async def with_mcp_tools(
    settings: Settings, toolbox: Toolbox, subprocesses: SubprocessPool
) -> AsyncGenerator[Toolbox, None]:
    """Add the tools of all declared MCP servers to a toolbox while the host runs.

    A server is started when a run first needs it.
    """
    servers = [
        *toolbox.servers,
        *await anyio.to_thread.run_sync(_declared_servers, settings.mcp_servers),
    ]
    if not servers:
        yield toolbox
        return
    _check(servers)
    # Imported only if there are servers, because these modules are slow to import.
    from wopr.agents.mcp.sessions import McpSessions
    from wopr.agents.mcp.tools import McpTools, ToolListings

    listings = ToolListings(settings.data_dir / LISTINGS)
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        toolbox.add_source(McpTools(servers, McpSessions(tasks), listings, subprocesses.run))
        try:
            yield toolbox
        except Exception as failure:
            # Raised again outside the task group, which would wrap it in a group.
            failed = failure
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _declared_servers(file: str) -> list[McpServer]:
    if not file:
        return []
    try:
        return read_servers(load_definition(Path(file)))
    except DefinitionUnreadable as fault:
        raise Refused(f"mcp_servers: {fault}", field="mcp_servers") from fault
    except ValueError as fault:
        raise Refused(f"mcp_servers: {file}: {fault}", field="mcp_servers") from fault


def _check(servers: list[McpServer]) -> None:
    if find_spec("mcp") is None:
        raise Refused("MCP servers need the package mcp. Install wopr[mcp].", field="mcp_servers")
    try:
        check_names(servers)
    except ValueError as fault:
        raise Refused(f"mcp_servers: {fault}", field="mcp_servers") from fault


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResources:
    """The models and tools of a host.

    `models` replace the configured providers, if a program or a test brings its own. `client` calls
    the configured providers; it is None if no provider is configured.
    """

    models: Models | None = None
    toolbox: Toolbox = field(default_factory=Toolbox)
    client: AsyncClient | None = None

    @property
    def has_models(self) -> bool:
        """Return whether a run can call a model."""
        return self.models is not None or self.client is not None


def provider_settings(settings: Settings) -> ProviderSettings:
    """Read the settings of model providers."""
    pairs = (pair.split("=", 1) for pair in _split_list(settings.model_servers))
    return ProviderSettings(
        environment=os.environ,
        servers={name.strip().lower(): url.strip() for name, url in pairs},
        allowed=tuple(_split_list(settings.models_allowed)),
        tenants_pay=settings.require_own_keys,
    )


def provider_names(settings: Settings, resources: AgentResources) -> list[str] | None:
    """Return the providers for the discovery document; None on a host without models."""
    if not resources.has_models:
        return None
    return [] if resources.client is None else provider_settings(settings).usable_providers


def model_check(settings: Settings, resources: AgentResources) -> ModelFault | None:
    """Return a check for models of unknown providers; None if models cannot be checked here.

    A program may bring models of any name, and a process that executes no nodes does not know the
    providers of other processes. Allowed models are checked when a run calls a model.
    """
    if resources.models is not None or not settings.executes:
        return None
    providers = provider_settings(settings)

    def model_fault(name: str) -> str | None:
        code, message = providers.refusal(name) or ("", "")
        return message if code == "provider_disabled" else None

    return model_fault


def missing_requirements(models: Sequence[str], settings: Settings) -> list[str]:
    """List the packages and settings that these models (`provider:model`) still need."""
    if models and not is_installed():
        return [f'pip install "wopr[models]", for {models[0]}']
    configured = provider_settings(settings).usable_providers
    missing: list[str] = []
    for model in models:
        provider = model.partition(":")[0]
        keys = " or ".join(key_names(provider))
        wanted = keys if provider in HOSTED_PROVIDERS else f"WOPR_MODEL_SERVERS={provider}=…"
        missing += [] if provider in configured else [f"{wanted}, for {model}"]
    return missing


def _split_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@asynccontextmanager
async def open_agent_resources(
    settings: Settings,
    models: Models | None,
    toolbox: Toolbox | None,
    subprocesses: SubprocessPool,
) -> AsyncGenerator[AgentResources, None]:
    """Open the clients of model providers and MCP servers while the host runs."""
    async with (
        with_mcp_tools(settings, toolbox or Toolbox(), subprocesses) as tools,
        _with_models(settings, models, tools) as resources,
    ):
        yield resources


@asynccontextmanager
async def _with_models(
    settings: Settings, models: Models | None, tools: Toolbox
) -> AsyncGenerator[AgentResources, None]:
    configured = provider_settings(settings).usable_providers
    if models is not None or not configured or not is_installed():
        yield AgentResources(models=models, toolbox=tools)
        return
    # In a thread, because the import of these large libraries would block the event loop.
    await anyio.to_thread.run_sync(_import_adapters, configured)
    from httpx2 import AsyncClient

    # Following a redirect would send the key to another host.
    async with AsyncClient(follow_redirects=False, timeout=600) as client:
        yield AgentResources(toolbox=tools, client=client)


def _import_adapters(configured: list[str]) -> None:
    importlib.import_module("wopr.agents.models.pydantic_adapter")
    for provider in configured:
        importlib.import_module(_MODULES.get(provider, _MODULES["openai"]))


def llm_services(
    settings: Settings,
    resources: AgentResources,
    store: Store,
    secret: bytes,
    audit: Audit,
    redactors: Redactors,
    quotas: Quotas,
) -> LlmServices:
    """Return the services that nodes use to call models."""

    async def record_use(tenant: str, ref: str) -> None:
        await audit.record(tenant, "host", "secret.use", ref)

    credentials = Credentials(
        store,
        Seal(derive(secret, SEAL_PURPOSE)),
        redactors,
        environment=os.environ,
        directory=Path(settings.secrets_dir) if settings.secrets_dir else None,
        on_use=record_use,
    )
    models = resources.models
    if models is None and resources.client is not None:
        models = ProviderModels(
            provider_settings(settings), credentials, redactors, resources.client
        )
    return LlmServices(
        models=None if models is None else CountedModels(models, quotas),
        quotas=quotas,
        toolbox=resources.toolbox,
        credentials=credentials,
        default_model=settings.default_model,
        caps=Caps(
            tokens=settings.max_budget_tokens or None,
            cost_usd=settings.max_budget_cost_usd or None,
            calls=settings.max_model_calls or None,
            tool_calls=settings.max_tool_calls or None,
        ),
    )


def confidence_floor(settings: Settings) -> ConfidenceFloor:
    """Return the confidence that a supervisor needs, and the interrupt that it raises below it."""
    kind = settings.confidence_interrupt_kind
    if kind == "clarification":
        return ConfidenceFloor(
            threshold=settings.confidence_floor,
            interrupt_kind=kind,
            escalation_kind="clarify",
            waiting_status="waiting-input",
        )
    if not is_vendor_kind(kind):
        return ConfidenceFloor(threshold=settings.confidence_floor, interrupt_kind=kind)
    means = settings.vendor_kind_means
    status = settings.vendor_kind_status or _STATUSES[means]
    return ConfidenceFloor(
        threshold=settings.confidence_floor,
        interrupt_kind=kind,
        escalation_kind=means,  # type: ignore[arg-type]  # checked with the settings
        waiting_status=status,  # type: ignore[arg-type]  # checked with the settings
        is_literal=settings.literal_vendor_kind,
    )
