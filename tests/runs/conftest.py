from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.in_process import Bench, Gates, bench, gate_types, numbered


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
async def ours(tmp_path: Path, gates: Gates) -> AsyncIterator[Bench]:
    """Run a host without HTTP on SQLite, whose `test.*` nodes wait at the test's gates."""
    async with bench(tmp_path, *gate_types(gates), new_id=numbered()) as running:
        yield running
