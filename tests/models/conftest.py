from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.hosts import FragileHost
from tests.models.anthropic_server import AnthropicServer
from tests.models.google_server import GoogleServer
from tests.models.model_server import ModelServer, serving
from tests.models.openai_server import OpenAiServer
from tests.wire.client import Wire
from tests.wire.host import ACME, ServedHost, served

NewHost = Callable[..., FragileHost]


Servers = dict[str, ModelServer]


@pytest.fixture(scope="session")
def server() -> Iterator[OpenAiServer]:
    """The scripted models that the tests of one process share."""
    with serving(OpenAiServer()) as running:
        yield running


@pytest.fixture(scope="session")
def servers(server: OpenAiServer) -> Iterator[Servers]:
    """The scripted models of every provider, by its name."""
    with serving(AnthropicServer()) as anthropic, serving(GoogleServer()) as google:
        yield {each.provider: each for each in (server, anthropic, google)}


@pytest.fixture(params=["local", "anthropic", "google"])
def any_server(servers: Servers, request: pytest.FixtureRequest) -> ModelServer:
    """The scripted models of each provider in turn."""
    return servers[request.param]


@pytest.fixture(scope="session")
def host(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host whose models are the scripted ones."""
    data_dir = tmp_path_factory.mktemp("models")
    with served(data_dir, "--log-format", "json", **variables(*servers.values())) as running:
        yield running


def variables(*servers: ModelServer) -> dict[str, str]:
    """What tells a host where the scripted models and the service beside them are."""
    return {
        "WOPR_MODEL_SERVERS": ",".join(each.address for each in servers),
        "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
        # Whoever runs the tests may have keys of their own; no test uses them.
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
    """Start hosts of a test's own, which can be killed."""
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
