from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.speakers import TYPES
from tests.fault.inprocess import Bench, bench, numbered


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Bench]:
    """A host of the test's own, with node types that say what their config tells them."""
    async with bench(tmp_path, *TYPES, new_id=numbered()) as running:
        yield running
