"""The discovery document's description of the HTTP client for nodes."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME, ServedHost

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def test_a_guarded_client_is_advertised_with_its_methods(anonymous: Wire) -> None:
    document = anonymous.document("/.well-known/openwop")

    assert document["httpClient"]["supported"] is True
    assert document["httpClient"]["ssrfGuard"] is True
    assert document["httpClient"]["methods"] == METHODS
    assert document["capabilities"]["httpClient"] == document["httpClient"]


def test_the_methods_are_those_that_a_node_accepts(acme: Wire) -> None:
    def call(method: str) -> int:
        config = {"url": "https://example.com", "method": method}
        definition = workflow([node("call", "wopr.http.request", config=config)])
        return acme.post("/v1/workflows", definition).status_code

    assert [call(method) for method in METHODS] == [201] * len(METHODS)
    assert call("OPTIONS") == 400


def test_a_host_that_calls_private_addresses_does_not_advertise_a_guarded_client(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, new_host(WOPR_ALLOW_PRIVATE_DESTINATIONS="1"))

    document = wire.document("/.well-known/openwop")

    assert "httpClient" not in document
    assert "httpClient" not in document["capabilities"]
