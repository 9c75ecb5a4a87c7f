"""The fleet on several processes: lines can be pushed to any of them, and all show the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fault.cluster import Cluster, cluster
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.kahn import KahnRun, push, push_run, transitions
from tests.support.postgres.databases import Databases
from tests.support.recorder import NOTICE

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("fleet")
    with databases.lent() as url, cluster(url, folder, workers=1) as running:
        yield running
        running.check()


@pytest.fixture
def first(shared: Cluster) -> Wire:
    return shared.apis[0].wire


@pytest.fixture
def second(shared: Cluster) -> Wire:
    return shared.apis[1].wire


def test_lines_pushed_to_both_processes_are_streamed_at_either(first: Wire, second: Wire) -> None:
    story = KahnRun()
    lines = story.whole()
    run_id = push_run(first, lines[0])

    with ThreadPoolExecutor(2) as readers:
        reading = [
            readers.submit(wire.frames, run_id, streamMode="debug") for wire in (first, second)
        ]
        for place, line in enumerate(lines[1:]):
            assert push((second, first)[place % 2], line).status_code == 200
        seen = [each.result(timeout=60) for each in reading]

    for frames in seen:
        # A slow reader still gets the events of the last line: an event after the end, and a
        # notice.
        events = [frame for frame in frames if frame.event != NOTICE]
        assert [event.json["sequence"] for event in events] == list(range(len(events)))
        assert "run.completed" in [event.event for event in events[-2:]]
    assert [transitions(wire, run_id) for wire in (first, second)] == [lines, lines]


def test_runs_requested_at_both_processes_at_once_are_built_once(
    shared: Cluster, first: Wire, second: Wire
) -> None:
    stories = [KahnRun() for _ in range(12)]
    for story in stories:
        assert push(first, *story.whole()).status_code == 200
    run_ids = [
        str(first.document(f"/api/runs/{story.run_id}")["run"]["openwop_run_id"])
        for story in stories
    ]

    with ThreadPoolExecutor(8) as readers:
        asked = [
            readers.submit(transitions, wire, run_id)
            for run_id in run_ids
            for wire in (first, second)
        ]
        found = [each.result() for each in asked]

    assert found == [story.whole() for story in stories for _ in range(2)]
    for run_id in run_ids:
        rows = shared.rows("SELECT sequence FROM events WHERE run_id = %s ORDER BY 1", run_id)
        assert [sequence for (sequence,) in rows] == list(range(len(rows)))


def test_a_run_of_the_host_is_in_the_fleet_wherever_it_was_executed(
    first: Wire, second: Wire
) -> None:
    run_id = first.run("conformance-agent-reasoning")["runId"]

    def is_told() -> bool:
        return all(wire.get(f"/api/runs/{run_id}").status_code == 200 for wire in (first, second))

    eventually(is_told)


def test_another_process_continues_the_fleet_when_its_leader_dies(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("successor")
    with databases.lent() as url, cluster(url, folder, workers=0) as running:
        leader = running.one("SELECT process_id FROM leases")
        dying = next(m for m in running.apis if m.process and f"-{m.process.pid}-" in leader)
        [heir] = [api for api in running.apis if api is not dying]

        dying.kill()
        run_id = heir.wire.run("conformance-agent-reasoning")["runId"]

        eventually(lambda: heir.wire.get(f"/api/runs/{run_id}").status_code == 200)
