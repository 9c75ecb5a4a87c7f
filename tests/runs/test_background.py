from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from wopr.process import background
from wopr.process.background import BackgroundTask
from wopr.protocol.errors import Unavailable

pytestmark = pytest.mark.anyio


class Work:
    """Count its calls, and fail as often as configured."""

    def __init__(self, failures: int = 0, pause: float | None = None) -> None:
        self.calls = 0
        self._failures = failures
        self._pause = pause
        self._called = anyio.Event()

    async def __call__(self) -> float | None:
        self.calls += 1
        self._called.set()
        if self.calls <= self._failures:
            raise Unavailable("the store is away")
        return self._pause

    async def until_called(self, times: int) -> None:
        with anyio.fail_after(30):
            while self.calls < times:
                self._called = anyio.Event()
                await self._called.wait()


async def test_a_task_is_called_at_once_and_again_when_it_is_triggered() -> None:
    work = Work()
    task = BackgroundTask("work", work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await work.until_called(1)
        await anyio.wait_all_tasks_blocked()
        calls = work.calls
        task.trigger()
        await work.until_called(2)
        tasks.cancel_scope.cancel()

    assert calls == 1


async def test_a_trigger_during_a_call_causes_another_call() -> None:
    calls: list[int] = []

    async def work() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            task.trigger()
        else:
            task.stop()

    task = BackgroundTask("work", work)
    with anyio.fail_after(30):
        await task.run()

    assert calls == [0, 1]


async def test_the_task_can_set_its_next_call_time() -> None:
    work = Work(pause=0.0)
    task = BackgroundTask("work", work, period=3600)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await work.until_called(3)
        tasks.cancel_scope.cancel()


async def test_a_failed_call_is_logged_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.001)
    work = Work(failures=2)
    task = BackgroundTask("work", work)

    with capture_logs() as lines:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(task.run)
            await work.until_called(3)
            tasks.cancel_scope.cancel()

    assert [(line["task"], line["retry_seconds"]) for line in lines] == [
        ("work", 0.001),
        ("work", 0.002),
    ]


async def test_a_task_that_does_not_start_at_once_waits_for_its_period() -> None:
    work = Work()
    task = BackgroundTask("work", work, period=3600, starts_at_once=False)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert work.calls == 0


async def test_a_stopped_task_ends_after_its_call() -> None:
    work = Work()
    task = BackgroundTask("work", work)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(task.run)
            await work.until_called(1)
            task.stop()

    assert work.calls == 1
