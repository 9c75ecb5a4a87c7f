from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wopr.store.open import open_store
from wopr.store.port import Store


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Use the event loop of a host, which is faster."""
    return "asyncio", {"use_uvloop": True}


# Another adapter is another parameter here: the tests use `store` and know no adapter.
@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'folder' / 'wopr.db'}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await open_store(store_url)
    yield opened
    await opened.close()
