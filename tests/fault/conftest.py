from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.hosts import FragileHost
from tests.fault.inprocess import Bench, Gates, bench, gate_types, numbered


@pytest.fixture(autouse=True, scope="session")
def _no_proxy() -> Iterator[None]:
    """Loopback is reached directly, whatever the machine's proxy settings are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates) -> AsyncIterator[Bench]:
    """A host of the test's own, whose `test.*` nodes wait at the test's gates."""
    async with bench(tmp_path, *gate_types(gates), new_id=numbered()) as running:
        yield running


@pytest.fixture
def new_host(tmp_path: Path) -> Iterator[Callable[..., FragileHost]]:
    """Start hosts of a test's own; what they leave behind is checked at the end."""
    started: list[FragileHost] = []

    def start(*options: str, **variables: str) -> FragileHost:
        host = FragileHost(tmp_path / f"host{len(started)}", ("--conformance", *options), variables)
        host.start()
        started.append(host)
        return host

    yield start
    for host in started:
        host.check()
