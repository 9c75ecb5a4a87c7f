from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import STORE_VARIABLE
from tests.support.client import Wire
from tests.support.host import ACME, GLOBEX, LIVE, ServedHost, served
from tests.support.otlp_collector import Collector
from tests.support.recorder import OFFICIAL

Connect = Callable[..., Wire]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests of `official_host` once: it is on SQLite, whichever store is chosen."""
    if os.environ.get(STORE_VARIABLE):
        return
    repeated = [item for item in items if _is_repeated(item)]
    if repeated:
        items[:] = [item for item in items if not _is_repeated(item)]
        config.hook.pytest_deselected(items=repeated)


def _is_repeated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    params: dict[str, object] = {} if callspec is None else callspec.params
    return (params.get("store_kind"), params.get("fixtures")) == ("postgres", "official_host")


@pytest.fixture(scope="session")
def official_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """Start a host with the published definitions instead of the project's own, on SQLite."""
    if not (OFFICIAL / "fixtures").is_dir():
        pytest.skip("the published OpenWOP workflows are not beside this checkout")
    data_dir = tmp_path_factory.mktemp("official")
    with served(data_dir, "--conformance", "--workflows", str(OFFICIAL / "fixtures")) as running:
        yield running


@pytest.fixture
def connect(host: ServedHost) -> Iterator[Connect]:
    """Connect clients; by default to the shared host."""
    opened: list[Wire] = []

    def open_wire(key: str | None = ACME, at: ServedHost = host) -> Wire:
        opened.append(Wire(at.url, key))
        return opened[-1]

    yield open_wire
    for wire in opened:
        wire.http.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Run a collector for a host's traces."""
    running = Collector()
    yield running
    running.close()


@pytest.fixture
def acme(connect: Connect) -> Wire:
    return connect(ACME)


@pytest.fixture(params=["host", "official_host"], ids=["own", "published"])
def fixtures(request: pytest.FixtureRequest, connect: Connect) -> Wire:
    """Connect to a host with conformance workflows: the project's own, then the published ones."""
    return connect(ACME, request.getfixturevalue(request.param))


@pytest.fixture
def globex(connect: Connect) -> Wire:
    return connect(GLOBEX)


@pytest.fixture
def live(connect: Connect) -> Wire:
    return connect(LIVE)


@pytest.fixture
def anonymous(connect: Connect) -> Wire:
    """Connect a client without a key."""
    return connect(None)
