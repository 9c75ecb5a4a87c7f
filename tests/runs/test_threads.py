from __future__ import annotations

import threading

import anyio
import pytest

from tests.support.eventually import eventually_async
from wopr.agents import threads
from wopr.agents.threads import abandoned_threads, run_in_thread
from wopr.engine.outcome import NodeFailure

pytestmark = pytest.mark.anyio


async def none_are_left() -> bool:
    return abandoned_threads() == 0


async def test_functions_are_refused_when_too_many_were_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MAX_ABANDONED", 2)
    go = threading.Event()

    for _ in range(2):
        with anyio.move_on_after(0.01):
            await run_in_thread(go.wait, go.wait)

    assert abandoned_threads() == 2
    with pytest.raises(NodeFailure, match="2 functions continued after their time limit"):
        await run_in_thread(go.wait, go.wait)

    go.set()
    await eventually_async(none_are_left)
    assert await run_in_thread(go.is_set, go.is_set)
