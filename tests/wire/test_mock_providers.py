from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.wire.refused_runs import refused
from wopr.protocol.documents import JsonObject


def test_a_missing_mock_provider_is_refused_with_the_existing_ones(acme: Wire) -> None:
    mock = {"mockProvider": {"id": "oracle"}}

    response = acme.post(
        "/v1/runs", {"workflowId": "conformance-stream-text", "configurable": mock}
    )

    advertised = acme.document("/.well-known/openwop")["testing"]["mockProviders"]
    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_mock_provider"
    assert response.json()["details"]["supported"] == advertised


@pytest.mark.parametrize("config", [{"tokens": "x"}, {"delayMsPerToken": 5001}, {"tokens": []}])
def test_the_config_of_a_mock_provider_is_checked(acme: Wire, config: JsonObject) -> None:
    mock = {"mockProvider": {"id": "stream-text", "config": config}}

    details = refused(acme, {"workflowId": "conformance-stream-text", "configurable": mock})

    assert details["field"].startswith("configurable.mockProvider.config")


@pytest.mark.parametrize("provider", ["stream-text", "oracle"])
def test_a_production_key_cannot_use_a_mock_provider(live: Wire, provider: str) -> None:
    mock = {"mockProvider": {"id": provider}}

    response = live.post(
        "/v1/runs", {"workflowId": "conformance-stream-text", "configurable": mock}
    )

    assert response.status_code == 403
    assert response.json()["error"] == "mock_provider_forbidden"


@pytest.mark.parametrize("version", ["0", "999", "-1", "1.0", "", "latest", "\u0661", "9" * 5000])
def test_a_forced_version_out_of_range_is_refused_with_the_range(acme: Wire, version: str) -> None:
    headers = {"X-Force-Engine-Version": version.encode()}

    response = acme.post("/v1/runs", {"workflowId": "conformance-version-fold"}, headers=headers)

    advertised = acme.document("/.well-known/openwop")["testing"]["forceEngineVersionRange"]
    assert response.status_code == 400
    assert response.json()["error"] == "unsupported_force_engine_version"
    assert response.json()["details"] == advertised


@pytest.mark.parametrize("version", ["1", "999"])
def test_a_production_key_cannot_force_a_version(live: Wire, version: str) -> None:
    headers = {"X-Force-Engine-Version": version}

    response = live.post("/v1/runs", {"workflowId": "conformance-version-fold"}, headers=headers)

    assert response.status_code == 403
    assert response.json()["error"] == "force_engine_version_forbidden"


def test_without_a_mock_a_model_call_reports_a_missing_provider(live: Wire) -> None:
    found = live.run("conformance-stream-text")

    assert found["error"]["code"] == "credential_required"


@pytest.mark.parametrize(
    ("provider", "status"),
    [
        ({"id": "tool-calls", "config": {"toolCalls": [{"id": "c1", "name": "t"}]}}, "completed"),
        ({"id": "usage-only", "config": {"usage": {"promptTokens": 3}}}, "completed"),
        ({"id": "error", "config": {"code": "provider_down", "message": "down"}}, "failed"),
        ({"id": "stream-text"}, "completed"),
    ],
)
def test_each_mock_provider_follows_its_config(
    acme: Wire, provider: JsonObject, status: str
) -> None:
    found = acme.run("conformance-stream-text", configurable={"mockProvider": provider})

    assert found["status"] == status
    assert found.get("error", {}).get("code") in (None, "provider_down")
