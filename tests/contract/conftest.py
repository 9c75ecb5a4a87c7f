from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wopr.store.open import open_store
from wopr.store.port import Store


# Another adapter is another parameter here: the tests ask for `store` and know no adapter.
@pytest.fixture(params=["sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'folder' / 'wopr.db'}"}
    return urls[request.param]


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await open_store(store_url)
    yield opened
    await opened.close()
