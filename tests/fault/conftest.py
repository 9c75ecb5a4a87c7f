from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.support.fragile_host import FragileHost
from tests.support.in_process import Bench, Gates, bench, gate_types, numbered


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def ours(
    tmp_path: Path, gates: Gates, new_database: Callable[[], Database]
) -> AsyncIterator[Bench]:
    """Run a host whose `test.*` nodes wait at the test's gates."""
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(tmp_path, *gate_types(gates), new_id=numbered(), url=url) as running:
            yield running


@pytest.fixture
def new_host(
    tmp_path: Path, new_database: Callable[[], Database]
) -> Iterator[Callable[..., FragileHost]]:
    """Start hosts with own settings; their databases are checked at the end."""
    started: list[FragileHost] = []

    with ExitStack() as kept:

        def start(*options: str, **variables: str) -> FragileHost:
            variables = kept.enter_context(new_database()) | variables
            directory = tmp_path / f"host{len(started)}"
            host = FragileHost(directory, ("--conformance", *options), variables)
            host.start()
            started.append(host)
            return host

        yield start
        for host in started:
            host.check()
