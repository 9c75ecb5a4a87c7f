from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.wire.client import Wire
from tests.wire.collector import Collector
from tests.wire.host import ACME, GLOBEX, LIVE, ServedHost, served
from tests.wire.recorder import OFFICIAL

Connect = Callable[..., Wire]


@pytest.fixture(scope="session")
def official_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host that runs the published definitions in place of the project's own."""
    if not (OFFICIAL / "fixtures").is_dir():
        pytest.skip("the published OpenWOP workflows are not beside this checkout")
    data_dir = tmp_path_factory.mktemp("official")
    with served(data_dir, "--conformance", "--workflows", str(OFFICIAL / "fixtures")) as running:
        yield running


@pytest.fixture
def connect(host: ServedHost) -> Iterator[Connect]:
    """Make callers; by default of the shared host."""
    opened: list[Wire] = []

    def open_wire(key: str | None = ACME, at: ServedHost = host) -> Wire:
        opened.append(Wire(at.url, key))
        return opened[-1]

    yield open_wire
    for wire in opened:
        wire.http.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Where a host's traces may go."""
    running = Collector()
    yield running
    running.close()


@pytest.fixture
def acme(connect: Connect) -> Wire:
    return connect(ACME)


@pytest.fixture(params=["host", "official_host"], ids=["own", "published"])
def fixtures(request: pytest.FixtureRequest, connect: Connect) -> Wire:
    """A caller of a host with conformance workflows: the project's own, then the published ones."""
    return connect(ACME, request.getfixturevalue(request.param))


@pytest.fixture
def globex(connect: Connect) -> Wire:
    return connect(GLOBEX)


@pytest.fixture
def live(connect: Connect) -> Wire:
    return connect(LIVE)


@pytest.fixture
def nobody(connect: Connect) -> Wire:
    """A caller without a key."""
    return connect(None)
