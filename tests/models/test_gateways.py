"""A hosted provider at an operator's address, with its own API and prices."""

from __future__ import annotations

import pytest

from tests.models.conftest import NewHost, Servers
from tests.models.model_runs import OUTCOMES, model_node, only_payload, started
from tests.models.turns import Say

KEY = "key.of.the.operator.for.a.gateway"
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("provider", "speaks_as", "model"),
    [
        ("openai", "local", "gpt-4o"),
        ("anthropic", "anthropic", "claude-opus-4-5"),
        ("google", "google", "gemini-2.5-flash"),
    ],
    ids=["openai", "anthropic", "google"],
)
def test_a_hosted_provider_is_called_at_the_operator_s_address(
    new_host: NewHost, servers: Servers, provider: str, speaks_as: str, model: str
) -> None:
    gateway = servers[speaks_as]
    gateway.scripts[model] = [Say("Hello.", tokens=(1000, 10))]
    host = new_host(
        WOPR_MODEL_SERVERS=f"{provider}={gateway.url}{gateway.base}",
        OPENAI_BASE_URL=NOWHERE,
        ANTHROPIC_BASE_URL=NOWHERE,
        GOOGLE_GEMINI_BASE_URL=NOWHERE,
        **{f"{provider.upper()}_API_KEY": KEY},
    )
    question = model_node("chat", model, {"requires": ["function-calling"]}, provider)

    log = host.wire.events_until(started(host.wire, [question]), *OUTCOMES)

    usage = only_payload(log, "provider.usage")
    assert (usage["provider"], usage["model"]) == (provider, model)
    assert usage["costEstimateUsd"] > 0
    assert gateway.keys(model) == [KEY]
    assert gateway.url not in str(log)
    assert host.wire.document("/.well-known/openwop")["aiProviders"]["supported"] == [provider]
