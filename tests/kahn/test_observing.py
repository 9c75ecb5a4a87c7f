"""Observed runs are built after the push: in order, once, and for the first reader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.support.kahn_lines import line, log_rules, move
from wopr.kahn.bridge.projection import project
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.observed import service as observing
from wopr.kahn.observed.service import ObservedRuns
from wopr.kahn.projection_queue import BATCH_ENTRIES, ProjectionQueue, ProjectRuns
from wopr.process.sources import time_ordered_id
from wopr.protocol.errors import Conflict
from wopr.protocol.events import RunEvent
from wopr.protocol.observed_ids import observed_run_id
from wopr.runs.event_bus import Bus
from wopr.store.port import Batch
from wopr.store.port.fleet import QueuedProjection
from wopr.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000


class HostDied(Exception):
    """The host dies here."""


class FragileStore(SqliteStore):
    """A store whose host dies before, or after, the next append."""

    dies = ""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        if self.dies == "before":
            raise HostDied
        is_held = await super().append(tenant, batches)
        if self.dies == "after":
            raise HostDied
        return is_held


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FragileStore]:
    opened = await FragileStore.open(str(tmp_path / "wopr.db"))
    assert isinstance(opened, FragileStore)
    yield opened
    await opened.close()


def observers(
    store: SqliteStore, bus: Bus | None = None, project: ProjectRuns | None = None
) -> ObservedRuns:
    """Return the observers of a host directly after its start."""
    return ObservedRuns(
        store,
        bus or Bus(9),
        log_rules(),
        now=lambda: NOW,
        new_id=time_ordered_id,
        count_events=lambda *_: None,
        project=project,
    )


async def push(store: SqliteStore, *lines: bytes, by: ObservedRuns | None = None) -> None:
    ingest = Ingest(LineWriter(store, lambda: NOW), by or observers(store))
    await ingest.push("acme", b"\n".join([*lines, b""]))


async def work_off(store: SqliteStore, by: ObservedRuns | None = None) -> None:
    await ProjectionQueue(store, (by or observers(store)).project, observed=True).catch_up()


async def waiting(store: SqliteStore) -> list[QueuedProjection]:
    return await store.queued_projections(0, 100, observed=True)


async def log(store: SqliteStore, run_id: str = "r-1") -> list[RunEvent]:
    events = await store.read("acme", observed_run_id("acme", run_id), 0, 10_000)
    return [msgspec.json.decode(event.body, type=RunEvent) for event in events]


def story(run_id: str = "r-1", agent_id: str = "coder") -> list[bytes]:
    same: dict[str, Any] = {"run_id": run_id, "agent_id": agent_id}
    return [
        line("agent_run_start", **same),
        move(0, "thinking", "tool_call", **same),
        line("tool_invocation", **same),
        line("agent_run_end", **same, outcome="converged", convergence_score=1),
    ]


async def test_a_push_is_durable_before_its_observed_run_exists(store: FragileStore) -> None:
    await push(store, *story())
    before = await log(store)

    await work_off(store)

    assert before == []
    assert list(project(await log(store))) == story()
    assert await waiting(store) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_host_that_died_while_building_continues_at_the_end_of_the_log(
    store: FragileStore, when: str
) -> None:
    await push(store, *story()[:2])
    await work_off(store)
    await push(store, *story()[2:])
    store.dies = when
    with pytest.raises(HostDied):
        await observers(store).catch_up("acme", observed_run_id("acme", "r-1"))
    store.dies = ""

    await work_off(store)

    events = await log(store)
    assert list(project(events)) == story()
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("run.completed") == 1
    assert await waiting(store) == []


async def test_failed_building_leaves_no_partial_state(store: FragileStore) -> None:
    same = observers(store)
    await push(store, *story()[:2], by=same)
    await work_off(store, same)
    await push(store, *story()[2:], by=same)
    store.dies = "before"
    with pytest.raises(HostDied):
        await same.catch_up("acme", observed_run_id("acme", "r-1"))
    store.dies = ""

    await work_off(store, same)

    assert list(project(await log(store))) == story()


@pytest.mark.parametrize("most_bytes", [1, 300, 1_000_000])
async def test_the_log_does_not_depend_on_the_batch_size(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(observing, "MAX_BYTES", most_bytes)
    late = line("audit_checkpoint", agent_id=None)
    for each in (*story(), *story(agent_id="tester"), late):
        await push(store, each)
    await push(store, *story("r-2"))

    await work_off(store)

    types = [event.type for event in await log(store)]
    # The run ended when the last line of the first agent arrived; later lines are stored after it.
    end = types.index("run.completed")
    assert types[:end] == [event.type for event in await log(store, "r-2")][:-1]
    assert types[end + 1 :] == [
        "kahn.agent_run_start",
        "kahn.agent_transition",
        "kahn.tool_invocation",
        "kahn.agent_run_end",
        "kahn.audit_checkpoint",
    ]


async def test_reading_a_run_catches_up_only_that_run(store: FragileStore) -> None:
    await push(store, *story("r-1"), *story("r-2"))

    await observers(store).catch_up("acme", observed_run_id("acme", "r-1"))

    assert len(await log(store, "r-1")) > 0
    assert await log(store, "r-2") == []


async def test_listing_runs_catches_up_all_runs_of_the_tenant(store: FragileStore) -> None:
    await push(store, *(each for number in range(70) for each in story(f"r-{number}")))

    await observers(store).catch_up_all("globex")
    before = await waiting(store)
    await observers(store).catch_up_all("acme")

    assert len(before) == 70
    assert await waiting(store) == []
    assert list(project(await log(store, "r-69"))) == story("r-69")


async def test_a_list_does_not_wait_for_slow_building(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "LISTING_SECONDS", -1.0)
    await push(store, *(each for number in range(70) for each in story(f"r-{number}")))

    await observers(store).catch_up_all("acme")

    assert len(await waiting(store)) == 70 - BATCH_ENTRIES


@pytest.mark.parametrize("name", ["r-1", "kahn-r-1", "kahn-", ""])
async def test_no_other_run_has_anything_to_catch_up_with(store: FragileStore, name: str) -> None:
    await push(store, *story())

    await observers(store).catch_up("acme", name)
    await observers(store).catch_up("globex", observed_run_id("acme", "r-1"))

    assert await log(store) == []
    assert await store.run("globex", observed_run_id("acme", "r-1")) is None


async def test_a_waiting_reader_is_woken_by_new_lines(store: FragileStore) -> None:
    bus = Bus(9)
    with bus.subscribe(observed_run_id("acme", "r-1")) as topic:
        news = topic.changed

        await push(store, *story(), by=observers(store, bus))

        assert news.is_set()


async def test_the_task_gives_pushes_priority(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "MAX_DELAY_SECONDS", 600.0)
    busy = observers(store)
    await push(store, *story(), by=busy)

    async with anyio.create_task_group() as tasks:
        with busy.during_push():
            tasks.start_soon(work_off, store, busy)
            await anyio.wait_all_tasks_blocked()
            meanwhile = await log(store)

    assert meanwhile == []
    assert list(project(await log(store))) == story()


async def test_continuous_pushes_do_not_stop_the_task(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "MAX_DELAY_SECONDS", 0.01)
    busy = observers(store)
    await push(store, *story(), by=busy)

    with busy.during_push():
        await work_off(store, busy)

    assert list(project(await log(store))) == story()


async def test_more_runs_than_the_cache_can_hold_are_all_built(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "CACHED_RUNS", 2)
    same, names = observers(store), [f"r-{number}" for number in range(7)]
    for part in (slice(0, 2), slice(2, None)):
        for name in names:
            await push(store, *story(name)[part], by=same)
        await work_off(store, same)

    for name in names:
        assert list(project(await log(store, name))) == story(name)


async def test_a_line_of_the_host_s_own_run_is_refused_with_every_line_named(
    store: FragileStore,
) -> None:
    told: list[tuple[str, str]] = []

    async def tell(runs: Sequence[tuple[str, str]]) -> None:
        told.extend(runs)

    host = observers(store, project=tell)
    await push(store, *story("r-1"))
    own = observed_run_id("acme", "r-1")
    await work_off(store)

    with pytest.raises(Conflict) as refused:
        await push(store, *story("r-2"), *story(own)[:3], by=host)

    errors: Any = refused.value.details["errors"]
    assert [each.line for each in errors] == [5, 6, 7]
    assert refused.value.code == "would_rewrite"
    assert told == [("acme", own)]
    assert await store.fleet_run("acme", "r-2") is None


async def test_lines_deleted_while_their_run_is_built_leave_no_run(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(store, *story())
    append = store.append

    async def deleted_first(tenant: str, batches: Sequence[Batch]) -> bool:
        name = observed_run_id("acme", "r-1")
        await store.fleet_hide([("acme", "r-1")], NOW)
        await store.fleet_delete([("acme", "r-1", name)])
        return await append(tenant, batches)

    monkeypatch.setattr(store, "append", deleted_first)
    await work_off(store)

    assert await log(store) == []
    assert await store.run("acme", observed_run_id("acme", "r-1")) is None
