"""A host killed between a run and the fleet, or the reverse: nothing is lost or duplicated."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.host import GLOBEX
from tests.support.kahn import KahnRun, push, stored_lines, transitions
from wopr.protocol.observed_ids import observed_run_id

pytestmark = pytest.mark.timeout(600)

THINKS = "conformance-agent-reasoning"
RUNS = 12
AGENTS = [f"agent-{number}" for number in range(150)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FragileHost]:
    fragile = FragileHost(tmp_path / "host", ("--conformance",))
    fragile.start()
    yield fragile
    if fragile.process is not None:
        fragile.kill()


def is_told(wire: Wire, run_id: str) -> bool:
    """Return whether the fleet has all lines of a run's log."""
    return stored_lines(wire, run_id) == transitions(wire, run_id)


def test_every_run_is_in_the_fleet_once_however_often_the_host_is_killed(host: FragileHost) -> None:
    made: list[str] = []
    theirs: list[str] = []
    for _ in range(3):
        made += [host.wire.run(THINKS)["runId"] for _ in range(RUNS)]
        with Wire(host.url, GLOBEX) as globex:
            theirs.append(globex.run(THINKS)["runId"])
        host.wire.post(f"/v1/runs/{made[-1]}/annotations", {"signal": {"kind": "flag"}})
        host.kill()
        host.start()

    for run_id in made:
        eventually(partial(is_told, host.wire, run_id))

    seen = host.wire.document("/api/runs", params={"limit": 200})["runs"]
    assert sorted(run["run_id"] for run in seen) == sorted(made)
    [agent] = host.wire.document("/api/agent-runs/aggregate", params={"window": "all"})["agents"]
    assert agent["run_count"] == len(made)
    with Wire(host.url, GLOBEX) as globex:
        for run_id in theirs:
            eventually(partial(is_told, globex, run_id))
            assert stored_lines(host.wire, run_id) == []
    host.check()


def test_an_acknowledged_push_is_complete_after_a_kill(host: FragileHost) -> None:
    stories = [KahnRun() for _ in range(5)]
    for story in stories:
        assert push(host.wire, *story.whole()[:5]).status_code == 200
    host.kill()
    host.start()

    for story in stories:
        answer = push(host.wire, *story.whole())
        assert answer.status_code == 200, answer.text
        assert answer.json()["duplicate"] == 5

    for story in stories:
        assert stored_lines(host.wire, story.run_id) == story.whole()
        assert transitions(host.wire, story.run_id) == story.whole()
    host.check()


def built(host: FragileHost, status: str) -> set[str]:
    """Return the stored observed runs of that status; a request to the host would build them."""
    with closing(sqlite3.connect(f"{host.db.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT run_id FROM runs WHERE run_id GLOB 'kahn-*' AND status = ?", (status,)
        )
        return {row[0] for row in rows}


def has_built(host: FragileHost, status: str, least: int) -> bool:
    return len(built(host, status)) >= least


@pytest.mark.parametrize("least", [0, 1, 70])
def test_a_host_killed_between_a_push_and_its_runs_builds_them_once(
    host: FragileHost, least: int
) -> None:
    stories = {observed_run_id("acme", story.run_id): story for story in map(KahnRun, AGENTS)}
    for cut, status in ((slice(0, 3), "running"), (slice(3, None), "completed")):
        lines = [line for story in stories.values() for line in story.whole()[cut]]
        assert push(host.wire, *lines).status_code == 200
        eventually(partial(has_built, host, status, least))
        host.kill()
        host.start()

    eventually(lambda: built(host, "completed") == stories.keys())

    for run_id, story in stories.items():
        assert transitions(host.wire, run_id) == story.whole()
        assert host.wire.types(run_id).count("run.completed") == 1
        notes = host.wire.document(f"/v1/runs/{run_id}/annotations")["annotations"]
        assert len(notes) == 1
    host.check()
