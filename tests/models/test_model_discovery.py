from __future__ import annotations

from tests.models.conftest import NewHost
from tests.support.client import Wire
from wopr.protocol.documents import JsonObject
from wopr.protocol.emitters import capability_value

ONLY_WITH_MODELS = (
    "agents.liveRuntime",
    "aiProviders",
    "modelCapabilities",
    "envelopes",
    "secrets",
    "multiAgent.executionModel.replayDeterminism",
    "providerUsage.costEstimates",
)


def discovered(wire: Wire) -> JsonObject:
    return wire.document("/.well-known/openwop")


def test_a_host_with_models_advertises_the_matching_capabilities(acme: Wire) -> None:
    document = discovered(acme)

    assert document["aiProviders"]["supported"] == ["anthropic", "google", "local"]
    assert document["agents"]["liveRuntime"]["sources"] == ["workflow-node"]
    recipe = capability_value(
        document, "multiAgent.executionModel.replayDeterminism.llmCacheKeyRecipe"
    )
    assert recipe == "spec-rfc-0041"
    assert all(capability_value(document, path) is not None for path in ONLY_WITH_MODELS)


def test_a_host_without_models_advertises_none(new_host: NewHost) -> None:
    host = new_host(WOPR_MODEL_SERVERS="")

    document = discovered(host.wire)

    assert [path for path in ONLY_WITH_MODELS if capability_value(document, path) is not None] == []


def test_the_address_of_a_model_server_is_never_shown(acme: Wire) -> None:
    document = discovered(acme)

    assert "http://127.0.0.1" not in str(document["aiProviders"])


def test_a_key_in_the_environment_configures_its_provider(new_host: NewHost) -> None:
    host = new_host(WOPR_MODEL_SERVERS="", ANTHROPIC_API_KEY="sk-ant-not-a-real-key-at-all")

    assert discovered(host.wire)["aiProviders"]["supported"] == ["anthropic"]
