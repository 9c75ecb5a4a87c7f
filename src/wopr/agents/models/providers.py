"""Models of real providers through pydantic-ai (extra `wopr[models]`).

The library makes single requests. The host implements the agent loop, tools, retries and records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wopr.agents.credentials import Credentials
from wopr.agents.models.port import ModelAnswer, ModelFault, ModelRequest, RequestOptions
from wopr.agents.models.provider_settings import HOSTED_PROVIDERS, ProviderSettings, key_names
from wopr.security.redact import MIN_SECRET, Redactors

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

# Fixed addresses, so that no environment variable can send a key elsewhere.
_ADDRESSES: Final = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
# The key for a local server that needs no key.
_NO_KEY: Final = "none"


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
        # All keys are redacted from the start: a run could print a key that another run uses later.
        for name in (*HOSTED_PROVIDERS, *settings.servers):
            redactors.register_operator(settings.host_key(name) or "")

    async def ask(self, request: ModelRequest, options: RequestOptions) -> ModelAnswer:
        """Answer one request, once."""
        # Imported here, because the extra may not be installed.
        from wopr.agents.models.pydantic_adapter import send

        self._check(request.provider, request.model)
        key = await self._key(request.provider, options)
        return await send(self._model(request.provider, request.model, key), request, options)

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        """Return the capabilities in the model's profile."""
        from wopr.agents.models.pydantic_adapter import capabilities_of

        self._check(provider, model)
        if provider not in HOSTED_PROVIDERS:
            # The models of a custom server are not known.
            return None
        return capabilities_of(self._model(provider, model, _NO_KEY))

    def _check(self, provider: str, model: str) -> None:
        """Raise `ModelFault` for a model that the operator does not allow."""
        refusal = self._settings.refusal(f"{provider}:{model}")
        if refusal is not None:
            raise _denied(provider, *refusal)

    async def _key(self, provider: str, options: RequestOptions) -> str:
        """Return the tenant's own key if one is named, else the operator's."""
        if options.credentials_ref:
            return await self._credentials.resolve(
                options.tenant, options.credentials_ref, provider=provider
            )
        if provider in self._settings.servers and self._settings.host_key(provider) is None:
            return _NO_KEY
        if self._settings.tenants_pay:
            message = f"{provider} needs your own credential. Name one with credentialsRef."
            raise _denied(provider, "byok_required", message)
        key = self._settings.host_key(provider)
        if key is None or len(key) < MIN_SECRET:
            raise ModelFault(
                f"This host has no key for {provider}. Set {' or '.join(key_names(provider))}, "
                "or name a credential with credentialsRef.",
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
