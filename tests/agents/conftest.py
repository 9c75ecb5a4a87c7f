from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.emitting_nodes import TYPES
from tests.support.in_process import Bench, bench, numbered
from wopr.store.open import open_store
from wopr.store.port import Store


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Bench]:
    """Run a host with node types that emit the events in their config."""
    async with bench(tmp_path, *TYPES, new_id=numbered()) as running:
        yield running


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    yield opened
    await opened.close()
