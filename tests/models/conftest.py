from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.models.anthropic_server import AnthropicServer
from tests.models.google_server import GoogleServer
from tests.models.model_server import ModelServer, serving
from tests.models.openai_server import OpenAiServer
from tests.support.client import Wire
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME, ServedHost, served

NewHost = Callable[..., FragileHost]


Servers = dict[str, ModelServer]


@pytest.fixture(scope="session")
def server() -> Iterator[OpenAiServer]:
    """Start the scripted models that the tests of one process share."""
    with serving(OpenAiServer()) as running:
        yield running


@pytest.fixture(scope="session")
def servers(server: OpenAiServer) -> Iterator[Servers]:
    """Start the scripted models of every provider, by its name."""
    with serving(AnthropicServer()) as anthropic, serving(GoogleServer()) as google:
        yield {each.provider: each for each in (server, anthropic, google)}


@pytest.fixture(params=["local", "anthropic", "google"])
def any_server(servers: Servers, request: pytest.FixtureRequest) -> ModelServer:
    """Return the scripted models of each provider in turn."""
    return servers[request.param]


@pytest.fixture(scope="session")
def host(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with the scripted models."""
    data_dir = tmp_path_factory.mktemp("models")
    with served(data_dir, "--log-format", "json", **variables(*servers.values())) as running:
        yield running


def variables(*servers: ModelServer) -> dict[str, str]:
    """Return the settings with the addresses of the scripted models and the service beside them."""
    return {
        "WOPR_MODEL_SERVERS": ",".join(each.address for each in servers),
        "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
        # The environment may have real keys; no test uses them.
        **dict.fromkeys(
            ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"), ""
        ),
    }


@pytest.fixture
def acme(host: ServedHost) -> Iterator[Wire]:
    with Wire(host.url, ACME) as wire:
        yield wire


@pytest.fixture
def new_host(tmp_path: Path, server: OpenAiServer) -> Iterator[NewHost]:
    """Start hosts that can be killed, with own settings."""
    started: list[FragileHost] = []

    def start(*options: str, **more: str) -> FragileHost:
        running = FragileHost(tmp_path / f"host{len(started)}", options, variables(server) | more)
        running.start()
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process is not None:
            running.stop()
