from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agents.speakers import TYPES
from tests.fault.inprocess import Bench, bench, numbered


@pytest.fixture(autouse=True, scope="session")
def _no_proxy() -> Iterator[None]:
    """Loopback is reached directly, whatever the machine's proxy settings are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Bench]:
    """A host of the test's own, with node types that say what their config tells them."""
    async with bench(tmp_path, *TYPES, new_id=numbered()) as running:
        yield running
