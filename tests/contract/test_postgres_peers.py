"""Data that processes share in a database: membership, leases and the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.protocol.errors import LeaseLost, SequenceTaken
from wopr.store.port import Batch, Claim, PendingCommand, RunRow
from wopr.store.port.peers import ListenerConnected, Notification, Process, RunWoken
from wopr.store.port.runs import code_of
from wopr.store.postgres import PostgresStore
from wopr.store.postgres.schema_constants import HORIZON_MS, OVERDUE_MS, TAKEN_MS
from wopr.store.tables.runs.runs import URGENT

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60
FAR = T0 + 3_600_000
AGE = "UPDATE processes SET beat_at = beat_at - interval '1 minute' WHERE process_id = %s"
# Heartbeats and the leadership stay valid from here on, even on a busy machine.
STAY = "UPDATE processes SET beat_at = now() + interval '1 hour' WHERE process_id = %s RETURNING 1"
LEAD_ON = "UPDATE leases SET renewed_at = now() + interval '1 hour' RETURNING 1"
JOBS = """
SELECT queueing_lock, priority, scheduled_at IS NOT NULL FROM procrastinate_jobs
WHERE status = 'todo' ORDER BY priority DESC, queueing_lock
"""
DOING = "UPDATE procrastinate_jobs SET status = 'doing' WHERE queueing_lock = %s RETURNING 1"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_url)
    yield opened
    await opened.close()


async def jobs(store: PostgresStore) -> list[tuple[Any, ...]]:
    """Return the queued wake-ups: the run, its urgency, and whether it is for later."""
    return await store._db.read_host(JOBS)


async def row(store: PostgresStore, run_id: str = "run-1") -> RunRow:
    found = await store.run(TENANT, run_id)
    assert found is not None
    return found


def claimed(step: Batch, process: str, *, keeps: bool = True, is_fence: bool = False) -> Batch:
    return replace(step, claim=Claim(process=process, keeps=keeps, is_fence=is_fence))


async def test_a_new_run_belongs_to_the_process_that_acquires_it_with_its_first_batch(
    store: PostgresStore,
) -> None:
    assert await store.append(TENANT, [claimed(batch(), "p1")])

    assert (await row(store)).holder == "p1"


async def test_a_run_belongs_to_one_process_until_it_releases_it(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch(wake_at=FAR), "p1")])

    assert not await store.append(TENANT, [claimed(batch(first=1, wake_at=FAR), "p2")])
    assert (await row(store)).holder == "p1"
    # It is due at once, so that the other process's work is not lost.
    assert (await row(store)).wake_at == T0

    assert await store.append(TENANT, [claimed(batch(first=2), "p1", keeps=False)])
    assert (await row(store)).holder is None
    assert await store.append(TENANT, [claimed(batch(first=3), "p2")])
    assert (await row(store)).holder == "p2"


async def test_acquiring_a_run_of_another_process_notifies_that_process(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])
    heard: list[Notification] = []

    async def listen() -> None:
        async for news in store.peers.notifications():
            heard.append(news)
            if isinstance(news, ListenerConnected):
                await store.append(TENANT, [claimed(batch(first=1), "p2")])
            if isinstance(news, RunWoken):
                return

    with anyio.fail_after(DEADLINE_SECONDS):
        await listen()

    assert heard[-1] == RunWoken(tenant=TENANT, run_id="run-1", process="p1")


async def test_a_node_in_flight_writes_only_while_its_process_holds_the_run(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])

    assert await store.append(TENANT, [claimed(batch(first=1), "p1", is_fence=True)])
    with pytest.raises(LeaseLost):
        await store.append(TENANT, [claimed(batch(first=2), "p2", is_fence=True)])
    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [claimed(batch(first=1), "p1", is_fence=True)])

    await store.append(TENANT, [claimed(batch(first=2), "p1", keeps=False)])
    with pytest.raises(LeaseLost):
        await store.append(TENANT, [claimed(batch(first=3), "p1", is_fence=True)])
    with pytest.raises(LeaseLost):
        # Other batches of the call were already written.
        await store.append(TENANT, [batch("run-2"), claimed(batch(first=3), "p1", is_fence=True)])
    assert await store.run(TENANT, "run-2") is None


async def test_no_process_holds_an_ended_run(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])

    await store.append(TENANT, [claimed(ended(), "p1")])

    assert (await row(store)).holder is None


async def test_a_wake_up_unknown_to_the_writer_is_kept(store: PostgresStore) -> None:
    await store.append(TENANT, [batch("parent", wake_at=FAR)])
    known = await row(store, "parent")
    await store.append(TENANT, [batch("child", wakes=["parent"], updated_at=T0 + 7)])

    unaware = replace(batch("parent", 1), run=replace(known, last_sequence=1, wake_at=FAR))
    await store.append(TENANT, [unaware])

    assert (await row(store, "parent")).wake_at == T0 + 7

    known = await row(store, "parent")
    aware = replace(batch("parent", 2), run=replace(known, last_sequence=2, wake_at=FAR))
    await store.append(TENANT, [aware])
    assert (await row(store, "parent")).wake_at == FAR


async def test_a_wake_up_is_queued_with_the_append_that_causes_it(store: PostgresStore) -> None:
    await store.append(
        TENANT,
        [
            batch("now", wake_at=T0),
            batch("soon", wake_at=T0 + 500),
            claimed(batch("held", wake_at=T0 + 500), "p1"),
            claimed(batch("held for long", wake_at=T0 + HORIZON_MS + 1), "p1"),
            batch("never"),
        ],
    )
    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch("new", wake_at=T0), batch("now", 7)])

    # A run without a holder is found by its row when it is due.
    assert await jobs(store) == [("held", 0, True), ("now", 0, False)]


async def test_a_run_has_one_wake_up_the_earliest_and_most_urgent(store: PostgresStore) -> None:
    def held(first: int, wake_at: int) -> Batch:
        return claimed(batch(first=first, wake_at=wake_at), "p1")

    await store.append(TENANT, [held(0, T0 + 900)])
    await store.append(TENANT, [replace(held(1, T0 + 500), is_urgent=True)])
    await store.append(TENANT, [held(2, T0 + 700)])
    assert await jobs(store) == [("run-1", URGENT, True)]

    await store.append(TENANT, [held(3, T0)])
    assert await jobs(store) == [("run-1", URGENT, False)]


async def test_the_end_of_a_run_removes_its_wake_up(store: PostgresStore) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])

    await store.append(TENANT, [ended()])

    assert await jobs(store) == []


async def test_a_run_that_ends_with_its_first_append_queues_no_job(store: PostgresStore) -> None:
    await store.append(TENANT, [ended(first=0)])

    assert await store._db.read_host("SELECT * FROM procrastinate_events") == []


async def test_wake_ups_of_parents_children_and_commands_are_queued_by_urgency(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch(name, wake_at=FAR) for name in ("a", "b", "c")])

    await store.append(TENANT, [replace(batch("x"), wakes=("a",))])
    await store.append(
        TENANT, [replace(batch("y"), commands=(PendingCommand(run_id="b", body=b"w"),))]
    )
    await store.set_pending_command(TENANT, "c", b"pause", T0)

    assert await jobs(store) == [("c", URGENT, False), ("a", 0, False), ("b", 0, False)]


async def test_the_holder_of_a_run_is_notified_and_no_wake_up_is_queued(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch("held", wake_at=FAR), "p1")])

    await store.append(TENANT, [batch("child", wakes=["held"])])

    assert await jobs(store) == []
    assert (await row(store, "held")).wake_at == T0


async def test_runs_of_a_dead_process_are_free_and_due(store: PostgresStore) -> None:
    for process in ("dead", "alive"):
        await store.peers.heartbeat(Process(name=process, kind="worker"))
        await store.append(TENANT, [claimed(batch(process, wake_at=FAR), process)])
    await store._db.write_host(f"{AGE} RETURNING 1", ("dead",))
    await store._db.write_host(STAY, ("alive",))

    assert await store.peers.rescue(T0 + 9) == 1
    assert await store.peers.rescue(T0 + 9) == 0

    freed = await row(store, "dead")
    assert (freed.holder, freed.wake_at) == (None, T0 + 9)
    assert (await row(store, "alive")).holder == "alive"
    assert await store.peers.take_due(T0 + 9, 5) == [(TENANT, "dead")]
    # It returns and learns that it was considered dead.
    assert (await store.peers.heartbeat(Process(name="dead", kind="worker"))).is_new
    with pytest.raises(LeaseLost):
        await store.append(TENANT, [claimed(batch("dead", 1), "dead", is_fence=True)])


async def test_a_job_of_a_dead_worker_is_deleted_and_its_run_queued_again(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])
    await store._db.write_host(DOING, ("run-1",))
    overdue = T0 + OVERDUE_MS
    assert await store.peers.queue_due(overdue) == 0

    await store.peers.rescue(T0)

    assert await store.peers.queue_due(overdue) == 1
    assert await jobs(store) == [("run-1", 0, False)]


async def test_a_held_run_that_is_due_soon_is_queued_once(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch("far", wake_at=T0 + HORIZON_MS + 1), "p1")])
    await store.append(OTHER, [claimed(batch("further", wake_at=T0 + 3 * HORIZON_MS), "p1")])

    assert await store.peers.queue_due(T0 + 2) == 1
    assert await store.peers.queue_due(T0 + 2) == 0

    assert await jobs(store) == [("far", 0, True)]


async def test_a_run_without_a_holder_is_queued_only_when_it_is_overdue(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch("timer", wake_at=T0 + 500)])

    assert await store.peers.queue_due(T0 + 500 + OVERDUE_MS - 1) == 0
    assert await store.peers.queue_due(T0 + 500 + OVERDUE_MS) == 1

    assert await jobs(store) == [("timer", 0, False)]


async def test_due_runs_are_acquired_in_batches_each_by_one_process(
    store: PostgresStore,
) -> None:
    names = [f"run-{number}" for number in range(5)]
    for number, name in enumerate(names):
        await store.append(TENANT, [batch(name, wake_at=T0 + number)])
    await store.append(OTHER, [batch("later", wake_at=T0 + HORIZON_MS)])
    await store.append(TENANT, [claimed(batch("held", wake_at=T0), "p3")])

    first = await store.peers.take_due(T0 + 9, 3)
    second = await store.peers.take_due(T0 + 9, 3)

    assert {run_id for _, run_id in first} == set(names[:3])
    assert {run_id for _, run_id in second} == set(names[3:])
    assert await store.peers.take_due(T0 + 9, 3) == []
    assert (await row(store, names[0])).holder is None
    # Nothing is queued for acquired runs, and nothing is queued again.
    assert [name for name, *_ in await jobs(store)] == ["held"]
    assert await store.peers.queue_due(T0 + 9) == 0


async def test_an_acquired_run_that_was_not_advanced_is_due_again(store: PostgresStore) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])
    assert await store.peers.take_due(T0, 10) == [(TENANT, "run-1")]

    assert await store.peers.take_due(T0 + TAKEN_MS - 1, 10) == []
    assert await store.peers.take_due(T0 + TAKEN_MS, 10) == [(TENANT, "run-1")]


async def test_a_run_that_waits_for_code_is_found_by_a_process_with_it_and_queued_for_a_live_one(
    store: PostgresStore,
) -> None:
    waiting = replace(batch(), missing_types={"ship": "shop.ship"})
    await store.append(TENANT, [waiting])
    able = Process(name="able", kind="worker", node_types=("core.noop", "shop.ship"))

    assert await store.peers.waiting_for(("core.noop",), 10) == []
    assert await store.peers.waiting_for(able.node_types, 10) == [(TENANT, "run-1")]
    assert not await store.peers.hand_over(TENANT, "run-1", "p1", ["shop.ship"])
    await store.peers.heartbeat(able)
    assert await store.peers.hand_over(TENANT, "run-1", "p1", ["shop.ship"])
    assert not await store.peers.hand_over(TENANT, "run-1", "able", ["shop.ship"])
    assert not await store.peers.hand_over(OTHER, "run-1", "p1", ["shop.ship"])


async def test_a_run_is_queued_only_for_a_process_with_all_the_code_of_a_node(
    store: PostgresStore,
) -> None:
    needs = code_of("openwop.llm.agent", ["local:find", "local:ship"])
    await store.append(TENANT, [replace(batch(), missing_types={"reply": needs})])
    half = Process(
        name="half", kind="worker", node_types=("openwop.llm.agent",), tools=("local:find",)
    )
    whole = replace(half, name="whole", tools=("local:find", "local:ship"))
    await store.peers.heartbeat(half)

    assert await store.peers.waiting_for(half.code, 10) == []
    assert not await store.peers.hand_over(TENANT, "run-1", "p1", [needs])
    assert await store.peers.waiting_for(whole.code, 10) == [(TENANT, "run-1")]
    await store.peers.heartbeat(whole)
    assert await store.peers.hand_over(TENANT, "run-1", "p1", [needs])
    assert [known.process for known in await store.peers.processes()] == [half, whole]


async def test_a_leaving_process_releases_its_runs_at_once(store: PostgresStore) -> None:
    await store.peers.heartbeat(Process(name="p1", kind="api"))
    await store.append(TENANT, [claimed(batch(wake_at=FAR), "p1")])
    assert await store.peers.held_runs("p1") == [(TENANT, "run-1")]

    await store.peers.leave("p1", T0 + 3)

    assert await store.peers.held_runs("p1") == []
    assert (await row(store)).wake_at == T0 + 3
    assert await jobs(store) == [("run-1", 0, False)]
    assert (await store.peers.heartbeat(Process(name="p1", kind="api"))).is_new


async def test_one_process_is_the_leader_until_its_heartbeat_is_too_old(
    store: PostgresStore,
) -> None:
    first = await store.peers.heartbeat(Process(name="p1", kind="api"))
    await store._db.write_host(LEAD_ON)
    second = await store.peers.heartbeat(Process(name="p2", kind="api"))
    assert (first.is_new, first.leads, second.leads) == (True, True, False)
    assert (await store.peers.heartbeat(Process(name="p1", kind="api"))).leads

    await store._db.write_host(
        "UPDATE leases SET renewed_at = now() - interval '1 minute' RETURNING 1"
    )

    assert (await store.peers.heartbeat(Process(name="p2", kind="api"))).leads
    await store._db.write_host(LEAD_ON)
    assert not (await store.peers.heartbeat(Process(name="p1", kind="api"))).leads


async def test_a_leaving_process_resigns_as_leader_at_once(store: PostgresStore) -> None:
    await store.peers.heartbeat(Process(name="p1", kind="api"))
    await store.peers.heartbeat(Process(name="p2", kind="api"))

    left = await store.peers.heartbeat(Process(name="p1", kind="api"), leads=False)

    assert not left.leads
    assert (await store.peers.heartbeat(Process(name="p2", kind="api"))).leads


async def test_an_unknown_notification_makes_the_listener_read_again(
    store: PostgresStore,
) -> None:
    async with aclosing(store.peers.notifications()) as news:
        assert await anext(news) == ListenerConnected()
        await store._db.write_host("SELECT pg_notify('wopr', 'what?')")
        await store._db.write_host("""SELECT pg_notify('wopr', '[null, {"newer": true}]')""")

        assert [await anext(news), await anext(news)] == [ListenerConnected(), ListenerConnected()]


async def test_the_first_value_of_a_shared_fact_is_kept(store: PostgresStore) -> None:
    assert await store.peers.share_fact("key", "one") == "one"
    assert await store.peers.share_fact("key", "two") == "one"


async def test_an_exclusive_block_admits_one_process_at_a_time(store: PostgresStore) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with store.peers.exclusive("name"):
            inside += 1
            assert inside == 1
            await store.peers.share_fact("something", "in between")
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(enter)


async def test_counts_describe_the_queue_and_the_processes(store: PostgresStore) -> None:
    await store.peers.heartbeat(Process(name="p1", kind="worker"))
    await store.append(TENANT, [claimed(batch("held"), "p1"), batch(wake_at=T0)])

    facts = await store.peers.facts()

    assert (facts.queue_depth, facts.held_runs) == (1, 1)
    assert facts.lease_ages.keys() == {"worker:p1"}
