"""Processes that die, freeze and return while others continue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.cluster import Cluster, Member, cluster, stream_text
from tests.support.eventually import eventually
from tests.support.postgres.databases import Databases

pytestmark = pytest.mark.timeout(240)

FAILOVER_SECONDS = 60.0
# A run lasts longer than a busy machine may delay the next step of a test.
TOKENS = 60
DELAY_MS = 250


@pytest.fixture
def ours(databases: Databases, tmp_path: Path) -> Iterator[Cluster]:
    with (
        databases.lent() as url,
        cluster(url, tmp_path, api_options=("--no-worker",)) as running,
    ):
        yield running


def other(ours: Cluster, member: Member) -> Member:
    """Return the other worker."""
    [found] = [worker for worker in ours.workers if worker is not member]
    return found


def until_moved(ours: Cluster, run_id: str, holder: str | None) -> None:
    """Wait until another process holds the run."""
    eventually(lambda: ours.holder(run_id) not in (holder, None), FAILOVER_SECONDS)


def completions(ours: Cluster, run_id: str) -> int:
    return ours.events(run_id).count("node.completed")


def test_any_process_accepts_any_run_and_all_read_it(ours: Cluster) -> None:
    first, second = ours.apis
    runs = [first.wire.create("conformance-delay", {"delayMs": 300}) for _ in range(10)]
    runs += [second.wire.create("conformance-noop") for _ in range(10)]

    ours.until_over(*runs)

    assert {second.wire.snapshot(run_id)["status"] for run_id in runs} == {"completed"}
    ours.check()


def test_a_worker_killed_during_a_step_loses_nothing(ours: Cluster) -> None:
    runs = [stream_text(ours.apis[n % 2], TOKENS, DELAY_MS) for n in range(6)]
    victim = ours.holder_of(runs[0])
    eventually(lambda: len(ours.events(runs[0])) > 5)

    victim.kill()
    ours.until_over(*runs)

    assert {ours.status(run_id) for run_id in runs} == {"completed"}
    assert [completions(ours, run_id) for run_id in runs] == [1] * len(runs)
    for run_id in runs:
        assert ours.chunks(run_id) == [str(n) for n in range(TOKENS)]
    ours.check()


def test_a_worker_that_was_frozen_does_not_write_to_its_lost_runs(ours: Cluster) -> None:
    run_id = stream_text(ours.apis[0], TOKENS, DELAY_MS)
    frozen = ours.holder_of(run_id)
    before = ours.holder(run_id)
    eventually(lambda: len(ours.events(run_id)) > 5)

    frozen.signal(signal.SIGSTOP)
    until_moved(ours, run_id, before)
    frozen.signal(signal.SIGCONT)
    ours.until_over(run_id)

    # Output is logged once, whichever process produced it.
    assert ours.chunks(run_id) == [str(n) for n in range(TOKENS)]
    assert completions(ours, run_id) == 1
    eventually(lambda: "process was declared dead by others" in frozen.log())
    # It is a member again.
    last = stream_text(ours.apis[0], 2, 0)
    other(ours, frozen).end()
    ours.until_over(last, stream_text(ours.apis[1], 2, 0))
    ours.check()


def test_runs_of_a_killed_rescuer_are_rescued_too(ours: Cluster) -> None:
    ours.worker()
    run_id = stream_text(ours.apis[0], TOKENS, DELAY_MS)
    first = ours.holder_of(run_id)
    before = ours.holder(run_id)
    first.kill()
    until_moved(ours, run_id, before)

    ours.holder_of(run_id).kill()
    ours.until_over(run_id)

    assert ours.status(run_id) == "completed"
    assert completions(ours, run_id) == 1
    ours.check()


def test_a_stopped_worker_releases_its_runs_at_once(ours: Cluster) -> None:
    run_id = stream_text(ours.apis[0], TOKENS, DELAY_MS)
    leaving = ours.holder_of(run_id)
    before = ours.holder(run_id)

    leaving.end()

    assert ours.holder(run_id) != before
    ours.until_over(run_id)
    assert completions(ours, run_id) == 1
    eventually(lambda: ours.one("SELECT count(*) FROM processes") == 3)
    ours.check()


def test_timers_are_taken_over_when_the_leader_freezes(ours: Cluster) -> None:
    def leader() -> str:
        return str(ours.one("SELECT process_id FROM leases"))

    before = leader()
    frozen = next(m for m in ours.members if str(m.running.pid) == before.split("-")[-2])

    frozen.signal(signal.SIGSTOP)
    eventually(lambda: leader() != before, FAILOVER_SECONDS)
    frozen.signal(signal.SIGCONT)

    ours.check()
