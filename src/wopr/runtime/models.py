"""The models of a host: who its providers are, and everything that agents need beside them."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from wopr.agents.credentials import Credentials
from wopr.agents.providers import (
    HOSTED,
    ProviderModels,
    ProviderSettings,
    is_installed,
    key_names,
)
from wopr.agents.toolbox import Toolbox
from wopr.nodes.llm_context import Caps
from wopr.nodes.models import Models
from wopr.runtime.audit import Audit
from wopr.runtime.llm_call import LlmServices
from wopr.runtime.mcp_servers import with_mcp_tools
from wopr.runtime.quotas import CountedModels, Quotas
from wopr.runtime.registration import ModelFault
from wopr.runtime.settings import Settings
from wopr.runtime.subprocess_pool import SubprocessPool
from wopr.security.credential_names import SEAL_PURPOSE
from wopr.security.redact import Redactors
from wopr.security.seal import Seal, derive
from wopr.store.port import Store

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_MODULES: Final = {
    "openai": "pydantic_ai.models.openai",
    "anthropic": "pydantic_ai.models.anthropic",
    "google": "pydantic_ai.models.google",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a host has for its agents.

    `models` stand in for the real providers where a program or a test brings its own; `client`
    dials the real ones, and is None where none is configured.
    """

    models: Models | None = None
    toolbox: Toolbox = field(default_factory=Toolbox)
    client: AsyncClient | None = None

    @property
    def has_models(self) -> bool:
        """Whether a run can ask a model here."""
        return self.models is not None or self.client is not None


def provider_settings(settings: Settings) -> ProviderSettings:
    """What the operator says about models, in the form that providers want."""
    pairs = (pair.split("=", 1) for pair in _words(settings.model_servers))
    return ProviderSettings(
        environment=os.environ,
        servers={name.strip().lower(): url.strip() for name, url in pairs},
        allowed=tuple(_words(settings.models_allowed)),
        tenants_pay=settings.require_own_keys,
    )


def providers_of(settings: Settings, parts: Offered) -> list[str] | None:
    """The providers to advertise; None on a host without models."""
    if not parts.has_models:
        return None
    return [] if parts.client is None else provider_settings(settings).configured


def model_fault_of(settings: Settings, parts: Offered) -> ModelFault | None:
    """A check that names models of unknown providers; None where the providers are not known.

    A program may bring models of any name. A process that executes no nodes does not know the
    providers of those that do. Which models are allowed is asked when a run asks one.
    """
    if parts.models is not None or not settings.executes:
        return None
    providers = provider_settings(settings)

    def model_fault(name: str) -> str | None:
        code, message = providers.refusal(name) or ("", "")
        return message if code == "provider_disabled" else None

    return model_fault


def missing_for(models: Sequence[str], settings: Settings) -> list[str]:
    """What must be installed or set before these models, as `provider:model`, can be asked."""
    if models and not is_installed():
        return [f'pip install "wopr[models]", for {models[0]}']
    configured = provider_settings(settings).configured
    missing: list[str] = []
    for model in models:
        provider = model.partition(":")[0]
        keys = " or ".join(key_names(provider))
        wanted = keys if provider in HOSTED else f"WOPR_MODEL_SERVERS={provider}=…"
        missing += [] if provider in configured else [f"{wanted}, for {model}"]
    return missing


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@asynccontextmanager
async def offered(
    settings: Settings,
    models: Models | None,
    toolbox: Toolbox | None,
    subprocesses: SubprocessPool,
) -> AsyncGenerator[Offered, None]:
    """Open what dials the configured providers, for as long as the host runs."""
    async with (
        with_mcp_tools(settings, toolbox or Toolbox(), subprocesses) as tools,
        _dialled(settings, models, tools) as parts,
    ):
        yield parts


@asynccontextmanager
async def _dialled(
    settings: Settings, models: Models | None, tools: Toolbox
) -> AsyncGenerator[Offered, None]:
    configured = provider_settings(settings).configured
    if models is not None or not configured or not is_installed():
        yield Offered(models=models, toolbox=tools)
        return
    # In a thread: these libraries are large, and the host must not stand still for them later.
    await anyio.to_thread.run_sync(_load, configured)
    from httpx2 import AsyncClient

    # A redirect would carry the key to somebody else.
    async with AsyncClient(follow_redirects=False, timeout=600) as client:
        yield Offered(toolbox=tools, client=client)


def _load(configured: list[str]) -> None:
    importlib.import_module("wopr.agents.pydantic_models")
    for provider in configured:
        importlib.import_module(_MODULES.get(provider, _MODULES["openai"]))


def llm_services(
    settings: Settings,
    parts: Offered,
    store: Store,
    secret: bytes,
    audit: Audit,
    redactors: Redactors,
    quotas: Quotas,
) -> LlmServices:
    """Put together what the nodes that ask models get."""

    async def noted(tenant: str, ref: str) -> None:
        await audit.record(tenant, "host", "secret.use", ref)

    credentials = Credentials(
        store,
        Seal(derive(secret, SEAL_PURPOSE)),
        redactors,
        environment=os.environ,
        directory=Path(settings.secrets_dir) if settings.secrets_dir else None,
        noted=noted,
    )
    models = parts.models
    if models is None and parts.client is not None:
        models = ProviderModels(provider_settings(settings), credentials, redactors, parts.client)
    return LlmServices(
        models=None if models is None else CountedModels(models, quotas),
        quotas=quotas,
        toolbox=parts.toolbox,
        credentials=credentials,
        default_model=settings.default_model,
        caps=Caps(
            tokens=settings.max_budget_tokens or None,
            cost_usd=settings.max_budget_cost_usd or None,
            calls=settings.max_model_calls or None,
            tool_calls=settings.max_tool_calls or None,
        ),
    )
