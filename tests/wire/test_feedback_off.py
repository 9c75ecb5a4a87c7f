from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client import Wire
from tests.support.feedback import FLAG, path_of
from tests.support.host import ACME, INGEST, ServedHost, served

CALLS = [
    ("POST", path_of("unknown-run")),
    ("GET", path_of("unknown-run")),
    ("GET", "/v1/feedback/summary"),
    ("POST", "/v1/queues"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/unknown"),
    ("POST", "/v1/queues/unknown/items:next"),
    ("POST", "/v1/queues/unknown/items/unknown-run:done"),
    ("POST", "/v1/judges"),
    ("GET", "/v1/judges/unknown"),
]


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host whose operator has switched feedback off."""
    with served(tmp_path_factory.mktemp("silent"), "--conformance", WOPR_FEEDBACK="0") as running:
        yield running


def test_feedback_that_is_switched_off_is_not_advertised(silent: ServedHost) -> None:
    with Wire(silent.url, None) as wire:
        found = wire.document("/.well-known/openwop")
        streams = wire.document("/v1/asyncapi.json")

    assert "feedback" not in found
    assert "host" not in found
    assert "run.annotated" not in streams["components"]["messages"]
    assert "feedback" not in found["capabilities"]


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize("key", [ACME, INGEST], ids=["admin", "without the scope"])
def test_every_call_answers_501_before_any_other_check(
    silent: ServedHost, method: str, path: str, key: str
) -> None:
    with Wire(silent.url, key) as wire:
        response = wire.http.request(method, path, json={"signal": FLAG})

    assert response.status_code == 501
    wire.recorder.error(response.json())
    assert response.json()["error"] == "capability_not_provided"
    assert response.json()["details"]["requiredCapability"] == "host.feedback"


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_missing_key_is_reported_first(silent: ServedHost, method: str, path: str) -> None:
    with Wire(silent.url, None) as wire:
        assert wire.http.request(method, path, json={}).status_code == 401
