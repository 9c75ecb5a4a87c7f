"""Wake-ups of a process that uses its store alone, while it recovers runs."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from wopr.cluster import local_wakeups
from wopr.cluster.local_wakeups import LocalWakeups

pytestmark = pytest.mark.anyio

RUNS = [("acme", f"run-{number}") for number in range(200)]


class SlowStore:
    """A store whose runs stay due, and that records runs slowly."""

    def __init__(self) -> None:
        self.looks = 0
        self.may_record = anyio.Event()
        self.looked_often = anyio.Event()

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        return []

    async def unfinished_runs(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        await self.may_record.wait()
        return []

    async def due_runs(self, now: int, limit: int) -> list[tuple[str, str]]:
        self.looks += 1
        if self.looks == 10:
            self.looked_often.set()
        return list(RUNS) if self.looks <= 10 else []

    async def due_runs_of_each_tenant(self, now: int, limit: int) -> list[tuple[str, str]]:
        return []

    async def next_due(self, now: int) -> int | None:
        return None

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        await self.may_record.wait()


class SuspectStore(SlowStore):
    """A store with unfinished runs, three of which were active when the last process died."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[list[str]] = []
        self._changed = anyio.Event()

    async def begin_recovery(self, now: int) -> list[tuple[str, str]]:
        return RUNS[:3]

    async def unfinished_runs(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        return [run for run in RUNS[:5] if after is None or run > after][:limit]

    async def due_runs(self, now: int, limit: int) -> list[tuple[str, str]]:
        return RUNS[:1]

    async def record_recovery(self, runs: Sequence[tuple[str, str]]) -> None:
        self.records.append([run_id for _, run_id in runs])
        self._changed.set()

    async def until_recorded(self, *last: list[str]) -> None:
        while self.records[-len(last) :] != list(last):
            self._changed = anyio.Event()
            await self._changed.wait()


class Waker:
    """Count the advanced runs."""

    def __init__(self, busy: Sequence[str] = ()) -> None:
        self.advanced: list[str] = []
        self.busy = set(busy)
        self.delayed: set[str] = set()
        self._changed = anyio.Event()

    def advance_soon(self, tenant: str, run_id: str) -> None:
        self.advanced.append(run_id)

    async def advance_now(self, tenant: str, run_id: str) -> None:
        self.advanced.append(run_id)
        self._changed.set()

    async def until_advanced(self, runs: int) -> None:
        while len(self.advanced) < runs:
            self._changed = anyio.Event()
            await self._changed.wait()

    def is_busy(self, run_id: str) -> bool:
        return run_id in self.busy

    def must_wait(self, tenant: str) -> bool:
        return tenant in self.delayed


async def test_a_run_that_stays_due_is_woken_once_while_it_waits_for_its_recovery() -> None:
    store, waker = SlowStore(), Waker()
    source = LocalWakeups(store, lambda: 0)  # type: ignore[arg-type]  # all of it that is used

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            source.start(tasks, waker)  # type: ignore[arg-type]  # all of it that is used
            await store.looked_often.wait()
            store.may_record.set()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

    assert sorted(waker.advanced) == sorted(run_id for _, run_id in RUNS)


async def test_runs_active_in_a_crash_are_recovered_last_and_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_wakeups, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(local_wakeups, "RECORD_UPDATE_SECONDS", 0.01)
    store, waker = SuspectStore(), Waker(busy=["run-1", "run-3"])
    source = LocalWakeups(store, lambda: 0)  # type: ignore[arg-type]  # all of it that is used

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            source.start(tasks, waker)  # type: ignore[arg-type]  # all of it that is used
            await store.until_recorded(["run-1", "run-3"])
            waker.busy.remove("run-1")
            await store.until_recorded(["run-3"])
            await source.stop()
            tasks.cancel_scope.cancel()

    assert waker.advanced == ["run-3", "run-4", "run-0", "run-1", "run-2"]
    with_others = [record for record in store.records if {"run-0", "run-2"}.intersection(record)]
    assert with_others == [["run-0", "run-1"], ["run-2"]]
    assert store.records[-1] == []


async def test_a_run_in_flight_is_recorded_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_wakeups, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(local_wakeups, "RECORD_UPDATE_SECONDS", 0.01)
    monkeypatch.setattr(local_wakeups, "MAX_RECORDED_SECONDS", 0.1)
    store, waker = SuspectStore(), Waker(busy=["run-3"])
    source = LocalWakeups(store, lambda: 0)  # type: ignore[arg-type]  # all of it that is used

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            source.start(tasks, waker)  # type: ignore[arg-type]  # all of it that is used
            await store.until_recorded(["run-3"], [])
            tasks.cancel_scope.cancel()

    assert waker.busy == {"run-3"}


class TwoTenants(SuspectStore):
    """A store with unfinished runs of two tenants, three of which were active in the last crash."""

    async def unfinished_runs(
        self, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        runs = [*RUNS[:5], ("globex", "other")]
        return [run for run in runs if after is None or run > after][:limit]

    async def due_runs(self, now: int, limit: int) -> list[tuple[str, str]]:
        return []


async def test_a_delayed_tenant_is_recovered_later_and_delays_no_other_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_wakeups, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(local_wakeups, "RECORD_UPDATE_SECONDS", 0.01)
    store, waker = TwoTenants(), Waker()
    waker.delayed.add("acme")
    source = LocalWakeups(store, lambda: 0)  # type: ignore[arg-type]  # all of it that is used

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            source.start(tasks, waker)  # type: ignore[arg-type]  # all of it that is used
            await store.until_recorded(["other"], [])
            waker.delayed.clear()
            await waker.until_advanced(6)
            tasks.cancel_scope.cancel()

    assert waker.advanced == ["other", "run-3", "run-4", "run-0", "run-1", "run-2"]
    with_suspects = [record for record in store.records if {"run-0", "run-2"}.intersection(record)]
    assert with_suspects == [["run-0", "run-1"], ["run-2"]]


async def test_a_run_that_is_advanced_for_long_delays_no_other_tenant() -> None:
    store, may_end = TwoTenants(), anyio.Event()

    class SlowWaker(Waker):
        """A waker whose first advance lasts until the test ends it."""

        async def advance_now(self, tenant: str, run_id: str) -> None:
            await super().advance_now(tenant, run_id)
            if tenant == "acme":
                await may_end.wait()

    waker = SlowWaker()
    source = LocalWakeups(store, lambda: 0)  # type: ignore[arg-type]  # all of it that is used

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            source.start(tasks, waker)  # type: ignore[arg-type]  # all of it that is used
            await waker.until_advanced(2)
            tasks.cancel_scope.cancel()

    assert waker.advanced == ["run-3", "other"]
