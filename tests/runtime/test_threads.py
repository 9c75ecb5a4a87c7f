from __future__ import annotations

import threading

import anyio
import pytest
from tests.fault.inprocess import eventually

from wopr.engine.outcome import NodeFailure
from wopr.nodes import threads
from wopr.nodes.threads import abandoned_threads, run_in_thread

pytestmark = pytest.mark.anyio


async def none_are_left() -> bool:
    return abandoned_threads() == 0


async def test_functions_are_refused_when_too_many_were_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_ABANDONED", 2)
    go = threading.Event()

    for _ in range(2):
        with anyio.move_on_after(0.01):
            await run_in_thread(go.wait, go.wait)

    assert abandoned_threads() == 2
    with pytest.raises(NodeFailure, match="2 functions went on after their time limit"):
        await run_in_thread(go.wait, go.wait)

    go.set()
    await eventually(none_are_left)
    assert await run_in_thread(go.is_set, go.is_set)
