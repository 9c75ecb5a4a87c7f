"""Models of real providers, on pydantic-ai, which is an extra of the package: `wopr[models]`.

The library is used one request at a time. Loops, tools, retries and records are the host's own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from wopr.agents.credentials import Credentials
from wopr.nodes.models import Asking, ModelAnswer, ModelFault, ModelRequest
from wopr.protocol.names import not_there
from wopr.security.redact import MIN_SECRET, Redactors

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

# Providers by their names here, with the variables that the operator's own keys are read from.
HOSTED: Final[dict[str, tuple[str, ...]]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
# Where they are, said here so that no variable of the environment sends a key elsewhere.
_ADDRESSES: Final = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
_NEEDED: Final = ("pydantic_ai", "openai", "anthropic", "google.genai")
# What stands in for the key of a local server that wants none.
_NO_KEY: Final = "none"


def is_installed() -> bool:
    """Tell whether the extra is there."""
    with suppress(ImportError):
        return all(importlib.util.find_spec(name) is not None for name in _NEEDED)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """What the operator says about models.

    `servers` are OpenAI-compatible servers by name, such as a local one, or where a hosted provider
    is reached instead, such as through a gateway; addresses come from here and never from a
    workflow. `allowed` are patterns of `provider:model`; without any, all are. With `tenants_pay`
    the operator's own keys are not used for anybody's runs.
    """

    environment: Mapping[str, str] = field(repr=False)
    servers: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed: tuple[str, ...] = ()
    tenants_pay: bool = False

    @property
    def configured(self) -> list[str]:
        """The providers that a run can use: with the host's key, a tenant's, or an address."""
        hosted = [name for name in HOSTED if self.tenants_pay or self.host_key(name) is not None]
        return sorted({*hosted, *self.servers})

    def host_key(self, provider: str) -> str | None:
        """The operator's own key for a provider."""
        names = key_names(provider)
        return next((key for name in names if (key := self.environment.get(name))), None)

    def refusal(self, name: str) -> tuple[str, str] | None:
        """Say why no run may ask a model, named `provider:model`: a code and a sentence."""
        provider = name.partition(":")[0]
        known = {*HOSTED, *self.servers}
        if provider not in known:
            message = f"{name!r}: there is no model provider {provider!r}: "
            return "provider_disabled", message + not_there(provider, known)
        if self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
            patterns = ", ".join(self.allowed)
            return "model_not_allowed", f"{name!r} may not be used here: expected {patterns}"
        return None


def key_names(provider: str) -> tuple[str, ...]:
    """The variables in which an operator gives the key of a provider."""
    return HOSTED.get(provider, (f"{provider.upper().replace('-', '_')}_API_KEY",))


class ProviderModels:
    """`Models` on pydantic-ai."""

    def __init__(
        self,
        settings: ProviderSettings,
        credentials: Credentials,
        redactors: Redactors,
        client: AsyncClient,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._client = client
        # All of them from the start: one run could repeat what another is about to use.
        for name in (*HOSTED, *settings.servers):
            redactors.register_operator(settings.host_key(name) or "")

    async def ask(self, request: ModelRequest, asking: Asking) -> ModelAnswer:
        """Answer one request, once."""
        # Here, and not above: the extra may not be installed.
        from wopr.agents.pydantic_models import send

        self._check(request.provider, request.model)
        key = await self._key(request.provider, asking)
        return await send(self._model(request.provider, request.model, key), request, asking)

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """What the model can do, as far as its profile says."""
        from wopr.agents.pydantic_models import abilities

        self._check(provider, model)
        if provider not in HOSTED:
            # Nobody knows what runs on somebody's own server.
            return None
        return abilities(self._model(provider, model, _NO_KEY))

    def _check(self, provider: str, model: str) -> None:
        """Refuse what the operator does not want, or has not."""
        refusal = self._settings.refusal(f"{provider}:{model}")
        if refusal is not None:
            raise _denied(provider, *refusal)

    async def _key(self, provider: str, asking: Asking) -> str:
        """The tenant's own key where it names one, else the operator's."""
        if asking.credentials_ref:
            return await self._credentials.resolve(
                asking.tenant, asking.credentials_ref, provider=provider
            )
        if provider in self._settings.servers and self._settings.host_key(provider) is None:
            return _NO_KEY
        if self._settings.tenants_pay:
            message = f"{provider} needs a credential of your own: name one with credentialsRef"
            raise _denied(provider, "byok_required", message)
        key = self._settings.host_key(provider)
        if key is None or len(key) < MIN_SECRET:
            raise ModelFault(
                f"this host has no key for {provider}: set {' or '.join(key_names(provider))}, "
                "or name a credential with credentialsRef",
                code="credential_required",
                retryable=False,
            )
        return key

    def _model(self, provider: str, model: str, key: str) -> Model:
        url = self._settings.servers.get(provider) or _ADDRESSES[provider]
        build = _BUILDERS.get(provider)
        if build is None:
            return _compatible(provider, model, key, url, self._client)
        return build(model, key, url, self._client)


def _denied(provider: str, reason: str, message: str) -> ModelFault:
    return ModelFault(
        message,
        code="provider_policy_denied",
        retryable=False,
        details={"provider": provider, "reason": reason},
    )


def _openai(model: str, key: str, url: str, client: AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=key, http_client=client)
    return OpenAIChatModel(model, provider=provider)


def _compatible(name: str, model: str, key: str, url: str, client: AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    provider = OpenAICompatibleProvider(name, base_url=url, api_key=key, http_client=client)
    return OpenAIChatModel(model, provider=provider)


def _anthropic(model: str, key: str, url: str, client: AsyncClient) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=url, api_key=key, http_client=client)
    return AnthropicModel(model, provider=provider)


def _google(model: str, key: str, url: str, client: AsyncClient) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(base_url=url, api_key=key, http_client=client)
    return GoogleModel(model, provider=provider)


_BUILDERS: Final[dict[str, Callable[[str, str, str, AsyncClient], Model]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
}
