"""Observed runs are built behind the push: in order, once, and for whoever reads them first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.fleet.builders import line, log_rules, move
from wopr.fleet.bridge import project
from wopr.fleet.ingest import Ingest
from wopr.fleet.observed_ids import observed_run_id
from wopr.protocol.errors import Conflict
from wopr.protocol.events import RunEvent
from wopr.runtime import observing
from wopr.runtime.bus import Bus
from wopr.runtime.fleet_debts import Debts
from wopr.runtime.observing import Observers
from wopr.runtime.sources import time_ordered_id
from wopr.store.port import Batch
from wopr.store.port.projections import Unprojected
from wopr.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000


class Torn(Exception):
    """The host died here."""


class FragileStore(SqliteStore):
    """A store whose host dies before, or after, the next append."""

    dies = ""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        if self.dies == "before":
            raise Torn
        is_held = await super().append(tenant, batches)
        if self.dies == "after":
            raise Torn
        return is_held


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FragileStore]:
    opened = await FragileStore.open(str(tmp_path / "wopr.db"))
    assert isinstance(opened, FragileStore)
    yield opened
    await opened.close()


def observers(store: SqliteStore, bus: Bus | None = None) -> Observers:
    """What a host has just after its start."""
    return Observers(
        store,
        bus or Bus(9),
        log_rules(),
        now=lambda: NOW,
        new_id=time_ordered_id,
        appended=lambda *_: None,
    )


async def push(store: SqliteStore, *lines: bytes, by: Observers | None = None) -> None:
    ingest = Ingest(store, lambda: NOW, by or observers(store))
    await ingest.push("acme", b"\n".join([*lines, b""]))


async def work_off(store: SqliteStore, by: Observers | None = None) -> None:
    await Debts(store, (by or observers(store)).show, observed=True).catch_up()


async def waiting(store: SqliteStore) -> list[Unprojected]:
    return await store.unprojected(0, 100, observed=True)


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


async def test_a_push_is_durable_before_the_run_that_shows_it_is_there(store: FragileStore) -> None:
    await push(store, *story())
    before = await log(store)

    await work_off(store)

    assert before == []
    assert list(project(await log(store))) == story()
    assert await waiting(store) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_host_that_died_while_building_goes_on_where_the_log_ends(
    store: FragileStore, when: str
) -> None:
    await push(store, *story()[:2])
    await work_off(store)
    await push(store, *story()[2:])
    store.dies = when
    with pytest.raises(Torn):
        await observers(store).catch_up("acme", observed_run_id("acme", "r-1"))
    store.dies = ""

    await work_off(store)

    events = await log(store)
    assert list(project(events)) == story()
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("run.completed") == 1
    assert await waiting(store) == []


async def test_building_that_failed_leaves_nothing_half_known(store: FragileStore) -> None:
    same = observers(store)
    await push(store, *story()[:2], by=same)
    await work_off(store, same)
    await push(store, *story()[2:], by=same)
    store.dies = "before"
    with pytest.raises(Torn):
        await same.catch_up("acme", observed_run_id("acme", "r-1"))
    store.dies = ""

    await work_off(store, same)

    assert list(project(await log(store))) == story()


@pytest.mark.parametrize("most_bytes", [1, 300, 1_000_000])
async def test_the_log_does_not_depend_on_how_much_is_built_at_once(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(observing, "MOST_BYTES", most_bytes)
    late = line("audit_checkpoint", agent_id=None)
    for each in (*story(), *story(agent_id="tester"), late):
        await push(store, each)
    await push(store, *story("r-2"))

    await work_off(store)

    types = [event.type for event in await log(store)]
    # The run was over when the first agent's last line came alone; what follows is kept behind.
    end = types.index("run.completed")
    assert types[:end] == [event.type for event in await log(store, "r-2")][:-1]
    assert types[end + 1 :] == [
        "kahn.agent_run_start",
        "kahn.agent_transition",
        "kahn.tool_invocation",
        "kahn.agent_run_end",
        "kahn.audit_checkpoint",
    ]


async def test_who_reads_a_run_catches_up_that_run_and_no_other(store: FragileStore) -> None:
    await push(store, *story("r-1"), *story("r-2"))

    await observers(store).catch_up("acme", observed_run_id("acme", "r-1"))

    assert len(await log(store, "r-1")) > 0
    assert await log(store, "r-2") == []


async def test_who_lists_runs_catches_up_all_of_the_tenant(store: FragileStore) -> None:
    await push(store, *(each for number in range(70) for each in story(f"r-{number}")))

    await observers(store).catch_up_all("globex")
    before = await waiting(store)
    await observers(store).catch_up_all("acme")

    assert len(before) == 70
    assert await waiting(store) == []
    assert list(project(await log(store, "r-69"))) == story("r-69")


async def test_a_list_does_not_wait_for_what_takes_long(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "LISTING_SECONDS", -1.0)
    await push(store, *(each for number in range(70) for each in story(f"r-{number}")))

    await observers(store).catch_up_all("acme")

    assert [each.run_id for each in await waiting(store)] == [
        observed_run_id("acme", f"r-{number}") for number in range(64, 70)
    ]


@pytest.mark.parametrize("name", ["r-1", "kahn-r-1", "kahn-", ""])
async def test_no_other_run_has_anything_to_catch_up_with(store: FragileStore, name: str) -> None:
    await push(store, *story())

    await observers(store).catch_up("acme", name)
    await observers(store).catch_up("globex", observed_run_id("acme", "r-1"))

    assert await log(store) == []
    assert await store.run("globex", observed_run_id("acme", "r-1")) is None


async def test_a_reader_that_waits_is_called_when_lines_come(store: FragileStore) -> None:
    bus = Bus(9)
    with bus.subscribe(observed_run_id("acme", "r-1")) as topic:
        news = topic.news

        await push(store, *story(), by=observers(store, bus))

        assert news.is_set()


async def test_the_task_lets_pushes_pass_first(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "PATIENCE_SECONDS", 600.0)
    busy = observers(store)
    await push(store, *story(), by=busy)

    async with anyio.create_task_group() as tasks:
        with busy.pushing():
            tasks.start_soon(work_off, store, busy)
            await anyio.wait_all_tasks_blocked()
            meanwhile = await log(store)

    assert meanwhile == []
    assert list(project(await log(store))) == story()


async def test_pushes_without_end_do_not_keep_the_task_from_building(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "PATIENCE_SECONDS", 0.01)
    busy = observers(store)
    await push(store, *story(), by=busy)

    with busy.pushing():
        await work_off(store, busy)

    assert list(project(await log(store))) == story()


async def test_more_runs_than_are_kept_in_memory_are_all_built(
    store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "KEPT_RUNS", 2)
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
    host = observers(store)
    told: list[tuple[str, str]] = []

    async def tell(runs: Sequence[tuple[str, str]]) -> None:
        told.extend(runs)

    host.project = tell
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


async def test_lines_that_are_deleted_while_their_run_is_built_leave_no_run_behind(
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
