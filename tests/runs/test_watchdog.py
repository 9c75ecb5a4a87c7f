from __future__ import annotations

import gc
import time
import weakref

import anyio
import pytest

from tests.support.eventually import eventually_async
from wopr.process.metrics import Metrics
from wopr.runs.execution.watchdog import UNKNOWN, Watchdog

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 60


class Held:
    pass


def reported(metrics: Metrics) -> float:
    labels = {"node_type": UNKNOWN}
    return metrics.registry.get_sample_value("wopr_event_loop_blocked_total", labels) or 0.0


async def block(metrics: Metrics) -> weakref.ref[Held]:
    """Block the event loop until the watchdog has reported it."""
    held = Held()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not reported(metrics) and time.monotonic() < deadline:
        time.sleep(0.01)  # noqa: ASYNC251 - blocking is what is tested
    return weakref.ref(held)


async def test_the_watchdog_keeps_no_reference_to_the_reported_code() -> None:
    metrics = Metrics()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Watchdog(metrics, 0.05).run_forever)
        await anyio.sleep(0.05)

        held = await block(metrics)

        async def is_gone() -> bool:
            return held() is None

        gc.collect()

        assert reported(metrics)
        await eventually_async(is_gone)
        tasks.cancel_scope.cancel()
