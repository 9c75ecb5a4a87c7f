from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from httpx2 import AsyncClient, MockTransport, Request, Response

from wopr.agents.credentials import Credentials
from wopr.agents.models.port import Message, ModelFault, ModelRequest, RequestOptions
from wopr.agents.models.provider_settings import ProviderSettings, is_installed
from wopr.agents.models.providers import ProviderModels
from wopr.security.encryption import Seal
from wopr.security.redact import Redactors
from wopr.store.open import open_store

pytestmark = pytest.mark.anyio

KEYS = {
    "OPENAI_API_KEY": "key-of-openai",
    "ANTHROPIC_API_KEY": "key-of-anthropic",
    "GEMINI_API_KEY": "key-of-google",
}


@pytest.fixture
def dialled() -> list[str]:
    """Return the called hosts."""
    return []


@pytest.fixture
async def models(tmp_path: Path, dialled: list[str]) -> AsyncIterator[ProviderModels]:
    store = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    redactors = Redactors()
    credentials = Credentials(store, Seal(b"k" * 32), redactors, environment={})
    settings = ProviderSettings(environment=KEYS, servers={"local": "http://127.0.0.1:1/v1"})

    def turned_away(request: Request) -> Response:
        dialled.append(request.url.host)
        return Response(400, json={"error": {"message": "no"}})

    async with AsyncClient(transport=MockTransport(turned_away), timeout=600) as client:
        yield ProviderModels(settings, credentials, redactors, client)
    await store.close()


def test_the_extra_is_installed_for_the_tests() -> None:
    assert is_installed()


def test_a_provider_is_configured_by_a_key_or_an_address() -> None:
    assert ProviderSettings(environment=KEYS).usable_providers == ["anthropic", "google", "openai"]
    assert ProviderSettings(environment={}).usable_providers == []
    assert ProviderSettings(environment={}, servers={"local": "http://x"}).usable_providers == [
        "local"
    ]
    assert ProviderSettings(environment={}, tenants_pay=True).usable_providers == [
        "anthropic",
        "google",
        "openai",
    ]


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "gpt-4o"), ("anthropic", "claude-sonnet-4-5"), ("google", "gemini-2.5-pro")],
)
async def test_the_profile_of_a_hosted_model_lists_its_capabilities(
    models: ProviderModels, provider: str, model: str
) -> None:
    able = models.capabilities(provider, model)

    assert able is not None
    assert "function-calling" in able


@pytest.mark.parametrize(
    ("provider", "variable", "address"),
    [
        ("openai", "OPENAI_BASE_URL", "api.openai.com"),
        ("anthropic", "ANTHROPIC_BASE_URL", "api.anthropic.com"),
        ("google", "GOOGLE_GEMINI_BASE_URL", "generativelanguage.googleapis.com"),
    ],
)
async def test_no_environment_variable_sends_a_key_to_another_address(
    models: ProviderModels,
    dialled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    variable: str,
    address: str,
) -> None:
    monkeypatch.setenv(variable, "https://elsewhere.example")
    question = Message(role="user", content="Hello.")

    with pytest.raises(ModelFault):
        await models.ask(
            ModelRequest(provider=provider, model="m", messages=[question]),
            RequestOptions(tenant="acme"),
        )

    assert dialled == [address]


async def test_nothing_is_known_about_a_custom_server(models: ProviderModels) -> None:
    assert models.capabilities("local", "whatever") is None


async def test_a_missing_provider_is_refused(models: ProviderModels) -> None:
    with pytest.raises(ModelFault) as fault:
        models.capabilities("nobody", "x")

    assert fault.value.error.code == "provider_policy_denied"
