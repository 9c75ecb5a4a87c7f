"""The task that projects runs into the fleet, with failures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.kahn_lines import ACME, Log
from tests.support.rows import run
from wopr.kahn.bridge.projection import Projector
from wopr.kahn.projection import Projection
from wopr.kahn.projection_queue import ProjectionQueue
from wopr.protocol.documents import encode
from wopr.protocol.errors import Conflict, Unavailable
from wopr.store.port import Batch, StoredEvent
from wopr.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


class Intake:
    """Accept lines like a fleet, and fail as configured."""

    def __init__(self) -> None:
        self.pushes: list[list[bytes]] = []
        self.refuses = ""
        self.is_away = False

    async def __call__(self, tenant: str, lines: Sequence[bytes]) -> None:
        if self.is_away:
            raise Unavailable("away")
        if self.refuses and any(json.loads(each)["run_id"] == self.refuses for each in lines):
            raise Conflict("no", code="would_rewrite")
        self.pushes.append(list(lines))

    def lines(self, run_id: str) -> list[str]:
        found = [json.loads(each) for push in self.pushes for each in push]
        return [each["event"] for each in found if each["run_id"] == run_id]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(str(tmp_path / "wopr.db"))
    yield opened
    await opened.close()


async def append(store: SqliteStore, log: Log, first: int = 0, tenant: str = "acme") -> None:
    events = tuple(
        StoredEvent(sequence=e.sequence, type=e.type, body=encode(e)) for e in log.events[first:]
    )
    row = run(log.events[0].run_id, len(log.events) - 1)
    await store.append(tenant, [Batch(run=row, first=first, events=events, projects=True)])


def telling(store: SqliteStore, intake: Intake) -> ProjectionQueue:
    async def new_projector(tenant: str) -> Projector:
        return Projector()

    return ProjectionQueue(store, Projection(store, intake, new_projector).project)


def story(run_id: str) -> Log:
    log = Log(run_id)
    log.add("node.started", typeId="t", agent=ACME)
    return log


async def test_runs_are_pushed_to_the_fleet_together_but_each_tenant_separately(
    store: SqliteStore,
) -> None:
    intake = Intake()
    for run_id in ("a", "b"):
        await append(store, story(run_id))
    await append(store, story("c"), tenant="globex")

    await telling(store, intake).catch_up()

    assert [len(push) for push in intake.pushes] == [2, 1]
    assert await store.queued_projections(0, 10) == []


async def test_only_new_events_of_a_log_are_pushed(store: SqliteStore) -> None:
    intake, log = Intake(), story("a")
    projection = telling(store, intake)
    await append(store, log)
    await projection.catch_up()
    log.add("agent.toolCalled", **ACME, toolName="grep", callId="c")
    await append(store, log, first=2)

    await projection.catch_up()

    assert intake.lines("a") == ["agent_run_start", "agent_transition"]


async def test_a_refused_run_does_not_stop_the_others(store: SqliteStore) -> None:
    intake = Intake()
    intake.refuses = "b"
    for run_id in ("a", "b", "c"):
        await append(store, story(run_id))

    await telling(store, intake).catch_up()

    assert intake.lines("a") == intake.lines("c") == ["agent_run_start"]
    assert [each.run_id for each in await store.queued_projections(0, 10)] == ["b"]


async def test_a_refused_run_is_tried_again_when_it_changes(store: SqliteStore) -> None:
    intake, log = Intake(), story("b")
    intake.refuses = "b"
    projection = telling(store, intake)
    await append(store, log)
    await projection.catch_up()
    intake.refuses = ""
    await projection.catch_up()
    untouched = intake.lines("b")
    log.add("agent.toolCalled", **ACME, toolName="grep", callId="c")
    await append(store, log, first=2)

    await projection.catch_up()

    assert untouched == []
    assert intake.lines("b") == ["agent_run_start", "agent_transition"]


async def test_nothing_is_removed_from_the_queue_during_a_store_outage(store: SqliteStore) -> None:
    intake = Intake()
    intake.is_away = True
    await append(store, story("a"))
    projection = telling(store, intake)
    with pytest.raises(Unavailable):
        await projection.catch_up()
    intake.is_away = False

    await projection.catch_up()

    assert intake.lines("a") == ["agent_run_start"]
    assert await store.queued_projections(0, 10) == []


async def test_a_deleted_run_is_removed_from_the_queue(store: SqliteStore) -> None:
    intake, log = Intake(), story("a")
    await append(store, log)
    row = replace(run("a", 2), status="completed", ended_at=5)
    await store.append(
        "acme", [Batch(run=row, first=2, events=(StoredEvent(sequence=2, type="x", body=b"{}"),))]
    )
    await store.delete_expired_runs(10, 10)

    await telling(store, intake).catch_up()

    assert intake.pushes == []
    assert await store.queued_projections(0, 10) == []
