"""Readers of runs: what they are given, however slow the store is."""

from __future__ import annotations

from types import SimpleNamespace

import anyio.lowlevel
import pytest

from wopr.runtime.bus import Bus
from wopr.runtime.readers import Readers
from wopr.store.port import StoredEvent

pytestmark = pytest.mark.anyio

STARTED = StoredEvent(sequence=0, type="run.started", body=b"{}")


class Log:
    """A store that has one event, and gives it when others have had their turn."""

    async def read(self, tenant: str, run_id: str, start: int, limit: int) -> list[StoredEvent]:
        await anyio.lowlevel.checkpoint()
        return [STARTED]


async def nothing_to_catch_up_with(tenant: str, run_id: str) -> None:
    pass


async def test_what_is_on_the_log_is_given_though_the_time_to_wait_is_over() -> None:
    advancer = SimpleNamespace(journal=SimpleNamespace(store=Log()))
    readers = Readers(advancer, Bus(9), nothing_to_catch_up_with)  # type: ignore[arg-type]  # its store is all that is used

    found = await readers.wait_for_events("acme", "run-1", 0, seconds=0)

    assert found == [STARTED]
