"""The operator's settings of model providers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from wopr.protocol.suggestions import suggest_name

# Hosted providers, with the environment variables of the operator's keys.
HOSTED_PROVIDERS: Final[dict[str, tuple[str, ...]]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}


_PACKAGES: Final = ("pydantic_ai", "openai", "anthropic", "google.genai")


def is_installed() -> bool:
    """Return whether the extra `wopr[models]` is installed."""
    with suppress(ImportError):
        return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """The operator's settings of models.

    `servers` are addresses by provider: OpenAI-compatible servers, or a gateway to a hosted
    provider. A workflow cannot set an address. `allowed` are patterns of `provider:model`; without
    any, all models are allowed. With `tenants_pay` no run uses the operator's own keys.
    """

    environment: Mapping[str, str] = field(repr=False)
    servers: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed: tuple[str, ...] = ()
    tenants_pay: bool = False

    @property
    def usable_providers(self) -> list[str]:
        """The providers that a run can use."""
        hosted = [
            name for name in HOSTED_PROVIDERS if self.tenants_pay or self.host_key(name) is not None
        ]
        return sorted({*hosted, *self.servers})

    def host_key(self, provider: str) -> str | None:
        """Return the operator's own key for a provider."""
        names = key_names(provider)
        return next((key for name in names if (key := self.environment.get(name))), None)

    def refusal(self, name: str) -> tuple[str, str] | None:
        """Return a code and a message if no run may use the model `provider:model`."""
        provider = name.partition(":")[0]
        known = {*HOSTED_PROVIDERS, *self.servers}
        if provider not in known:
            message = f"{name!r}: there is no model provider {provider!r}: "
            return "provider_disabled", message + suggest_name(provider, known)
        if self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
            patterns = ", ".join(self.allowed)
            return "model_not_allowed", f"{name!r} is not allowed on this host: expected {patterns}"
        return None


def key_names(provider: str) -> tuple[str, ...]:
    """Return the environment variables of a provider's key."""
    return HOSTED_PROVIDERS.get(provider, (f"{provider.upper().replace('-', '_')}_API_KEY",))
