"""Several processes that change one run at the same time: one wins, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fault.cluster import LOCAL, Cluster, Member, cluster, stream_text
from tests.fault.receiver import receiving
from tests.support.client import Wire
from tests.support.definitions import delay, node, workflow
from tests.support.eventually import eventually
from tests.support.host import ACME
from tests.support.interrupts import answer, gate, until_waiting
from tests.support.postgres.databases import Databases

pytestmark = pytest.mark.timeout(300)

RUNS = 12
JOB = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args)
SELECT 'runs', 'wopr.advance', jsonb_build_object('tenant', 'acme', 'run_id', %s::text)
FROM generate_series(1, %s)
"""


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("races")
    with (
        databases.lent() as url,
        cluster(
            url, folder, api_options=("--no-worker",), WOPR_ALLOW_PRIVATE_DESTINATIONS="1"
        ) as running,
    ):
        yield running
        running.until_over()
        running.check()


@pytest.fixture
def wires(shared: Cluster) -> Iterator[list[Wire]]:
    """Return a client of each serving process, for separate threads."""
    made = [Wire(api.url, ACME) for api in shared.apis]
    yield made
    for wire in made:
        wire.http.close()


def test_one_of_two_concurrent_answers_at_two_processes_is_accepted(
    shared: Cluster, wires: list[Wire]
) -> None:
    definition = workflow([gate(), delay("after", 20)])
    runs = [wires[0].create(wires[0].register(definition)) for _ in range(RUNS)]
    for run_id in runs:
        until_waiting(wires[1], run_id)

    with ThreadPoolExecutor(2) as both:
        codes = [
            [
                given.result().status_code
                for given in [
                    both.submit(answer, wire, run_id, "gate", {"action": "accept"})
                    for wire in wires
                ]
            ]
            for run_id in runs
        ]

    assert {tuple(sorted(pair)) for pair in codes} <= {(200, 409), (200, 404), (200, 410)}
    shared.until_over(*runs)
    assert {shared.status(run_id) for run_id in runs} == {"completed"}
    for run_id in runs:
        assert shared.events(run_id).count("interrupt.resolved") == 1


def test_a_cancel_concurrent_with_an_advance_ends_the_run_once(
    shared: Cluster, wires: list[Wire]
) -> None:
    runs = [stream_text(shared.apis[n % 2], 20, 20) for n in range(RUNS)]

    with ThreadPoolExecutor(4) as several:
        codes = list(
            several.map(
                lambda n: wires[n % 2].post(f"/v1/runs/{runs[n]}/cancel", {}).status_code,
                range(RUNS),
            )
        )

    assert set(codes) == {200}
    shared.until_over(*runs)
    for run_id in runs:
        ends = [e for e in shared.events(run_id) if e in ("run.completed", "run.cancelled")]
        assert len(ends) == 1


def test_a_pause_at_one_process_applies_at_another(shared: Cluster, wires: list[Wire]) -> None:
    with receiving() as receiver:
        receiver.may_answer.clear()
        config = {"url": receiver.url, "method": "POST", "timeoutMs": 60_000}
        asking = workflow([node("ask", "wopr.http.request", config=config)])
        run_id = wires[0].create(wires[0].register(asking))
        eventually(lambda: len(receiver.keys) == 1)

        paused = wires[1].post(f"/v1/runs/{run_id}:pause", {"drainPolicy": "immediate"})
        eventually(lambda: shared.holder(run_id) is None)

        assert paused.status_code == 202, paused.text
        assert shared.status(run_id) == "paused"
        receiver.may_answer.set()
        assert wires[0].post(f"/v1/runs/{run_id}:resume").status_code == 202
        shared.until_over(run_id)
        assert shared.status(run_id) == "completed"


def test_workers_that_compete_for_one_run_execute_it_once(shared: Cluster) -> None:
    run_id = stream_text(shared.apis[0], 30, 50)

    # Without the lock that prevents the queue from doing this.
    with psycopg.connect(shared.url, autocommit=True, options=LOCAL) as connection:
        connection.execute(JOB, (run_id, 20))
    shared.until_over(run_id)

    assert shared.chunks(run_id) == [str(n) for n in range(30)]
    assert shared.events(run_id).count("node.completed") == 1


def test_children_are_executed_by_any_free_worker(shared: Cluster, wires: list[Wire]) -> None:
    child = wires[0].register(workflow([delay("wait", 30), node("done")]))
    config = {"workflowId": child, "waitForCompletion": True}
    parent = wires[0].register(
        workflow([node(f"child{n}", "core.subWorkflow", config=config) for n in range(8)], edges=[])
    )

    runs = [wires[n % 2].create(parent) for n in range(4)]
    shared.until_over(*runs)

    assert {shared.status(run_id) for run_id in runs} == {"completed"}
    for run_id in runs:
        children = shared.rows("SELECT status FROM runs WHERE parent_run_id = %s", run_id)
        assert children == [("completed",)] * 8


def test_only_a_worker_executes_runs(shared: Cluster, wires: list[Wire]) -> None:
    name = wires[0].register(workflow([delay("wait", 30), node("done")]))

    def have_all_worked() -> bool:
        # A delayed worker may have found no work left.
        shared.until_over(*(wires[n % 2].create(name) for n in range(RUNS)))
        return all(has_completed(worker) for worker in shared.workers)

    eventually(have_all_worked)


def has_completed(worker: Member) -> bool:
    """Return whether runs have completed at this process."""
    lines = worker.wire.metrics().splitlines()
    counts = [line.split()[-1] for line in lines if 'ended_total{status="completed"}' in line]
    return any(float(count) > 0 for count in counts)
