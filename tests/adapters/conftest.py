from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.script import TRACE


@pytest.fixture(autouse=True)
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set the folder in which models and tools record their calls, and disable external tracing."""
    path = tmp_path / "trace"
    monkeypatch.setenv(TRACE, str(path))
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    yield path
    # Release the tools that still wait.
    Path(f"{path}.go").touch()
