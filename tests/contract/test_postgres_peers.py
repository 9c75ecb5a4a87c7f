"""What processes that share a database find there: each other, who has which run, and the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.contract.builders import OTHER, T0, TENANT, batch, ended
from wopr.protocol.errors import HoldLost, SequenceTaken
from wopr.store.port import Batch, Claim, RunRow, Wish
from wopr.store.port.peers import Listening, News, Process, Woken
from wopr.store.port.runs import code_of
from wopr.store.postgres import PostgresStore
from wopr.store.postgres.append import URGENT
from wopr.store.postgres.schema_peers import HORIZON_MS
from wopr.store.postgres.schema_timers import OVERDUE_MS, TAKEN_MS

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60
FAR = T0 + 3_600_000
AGE = "UPDATE processes SET beat_at = beat_at - interval '1 minute' WHERE process_id = %s"
# However long a busy machine takes from here on, the sign of life and the lead are not too old.
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
    """Queued wake-ups: the run, how urgent it is, and whether it is for later."""
    return await store._db.ask(JOBS)


async def row(store: PostgresStore, run_id: str = "run-1") -> RunRow:
    found = await store.run(TENANT, run_id)
    assert found is not None
    return found


def claimed(step: Batch, process: str, *, keeps: bool = True, is_fence: bool = False) -> Batch:
    return replace(step, claim=Claim(process=process, keeps=keeps, is_fence=is_fence))


async def test_a_run_that_is_new_is_whose_claim_comes_with_it(store: PostgresStore) -> None:
    assert await store.append(TENANT, [claimed(batch(), "p1")])

    assert (await row(store)).holder == "p1"


async def test_a_run_is_one_process_s_until_that_gives_it_back(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch(wake_at=FAR), "p1")])

    assert not await store.append(TENANT, [claimed(batch(first=1, wake_at=FAR), "p2")])
    assert (await row(store)).holder == "p1"
    # It is due at once, so that nobody forgets what the other has begun.
    assert (await row(store)).wake_at == T0

    assert await store.append(TENANT, [claimed(batch(first=2), "p1", keeps=False)])
    assert (await row(store)).holder is None
    assert await store.append(TENANT, [claimed(batch(first=3), "p2")])
    assert (await row(store)).holder == "p2"


async def test_who_claims_what_another_has_wakes_the_other(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])
    heard: list[News] = []

    async def listen() -> None:
        async for news in store.peers.news():
            heard.append(news)
            if isinstance(news, Listening):
                await store.append(TENANT, [claimed(batch(first=1), "p2")])
            if isinstance(news, Woken):
                return

    with anyio.fail_after(DEADLINE_SECONDS):
        await listen()

    assert heard[-1] == Woken(tenant=TENANT, run_id="run-1", process="p1")


async def test_a_node_in_flight_writes_only_while_its_process_has_the_run(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])

    assert await store.append(TENANT, [claimed(batch(first=1), "p1", is_fence=True)])
    with pytest.raises(HoldLost):
        await store.append(TENANT, [claimed(batch(first=2), "p2", is_fence=True)])
    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [claimed(batch(first=1), "p1", is_fence=True)])

    await store.append(TENANT, [claimed(batch(first=2), "p1", keeps=False)])
    with pytest.raises(HoldLost):
        await store.append(TENANT, [claimed(batch(first=3), "p1", is_fence=True)])
    with pytest.raises(HoldLost):
        # Also where other batches of the call are written already.
        await store.append(TENANT, [batch("run-2"), claimed(batch(first=3), "p1", is_fence=True)])
    assert await store.run(TENANT, "run-2") is None


async def test_a_run_that_has_ended_is_nobody_s(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch(), "p1")])

    await store.append(TENANT, [claimed(ended(), "p1")])

    assert (await row(store)).holder is None


async def test_a_wake_up_that_its_writer_has_not_heard_of_is_kept(store: PostgresStore) -> None:
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

    # A run that no process holds is taken from its row when it is due.
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


async def test_a_run_that_ends_takes_its_wake_up_with_it(store: PostgresStore) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])

    await store.append(TENANT, [ended()])

    assert await jobs(store) == []


async def test_a_run_that_ends_with_its_first_append_costs_no_job(store: PostgresStore) -> None:
    await store.append(TENANT, [ended(first=0)])

    assert await store._db.ask("SELECT * FROM procrastinate_events") == []


async def test_a_parent_a_child_and_a_wish_are_queued_and_answers_come_first(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch(name, wake_at=FAR) for name in ("a", "b", "c")])

    await store.append(TENANT, [replace(batch("x"), wakes=("a",))])
    await store.append(TENANT, [replace(batch("y"), wishes=(Wish(run_id="b", body=b"w"),))])
    await store.set_wish(TENANT, "c", b"pause", T0)

    assert await jobs(store) == [("c", URGENT, False), ("a", 0, False), ("b", 0, False)]


async def test_a_run_that_somebody_has_is_told_and_not_queued(store: PostgresStore) -> None:
    await store.append(TENANT, [claimed(batch("held", wake_at=FAR), "p1")])

    await store.append(TENANT, [batch("child", wakes=["held"])])

    assert await jobs(store) == []
    assert (await row(store, "held")).wake_at == T0


async def test_the_runs_of_a_process_that_died_are_free_and_due(store: PostgresStore) -> None:
    for process in ("dead", "alive"):
        await store.peers.beat(Process(name=process, kind="worker"))
        await store.append(TENANT, [claimed(batch(process, wake_at=FAR), process)])
    await store._db.tell(f"{AGE} RETURNING 1", ("dead",))
    await store._db.tell(STAY, ("alive",))

    assert await store.peers.rescue(T0 + 9) == 1
    assert await store.peers.rescue(T0 + 9) == 0

    freed = await row(store, "dead")
    assert (freed.holder, freed.wake_at) == (None, T0 + 9)
    assert (await row(store, "alive")).holder == "alive"
    assert await store.peers.take_due(T0 + 9, 5) == [(TENANT, "dead")]
    # It comes back, and hears that it was gone.
    assert (await store.peers.beat(Process(name="dead", kind="worker"))).is_new
    with pytest.raises(HoldLost):
        await store.append(TENANT, [claimed(batch("dead", 1), "dead", is_fence=True)])


async def test_a_job_whose_worker_is_gone_is_dropped_and_its_run_queued_anew(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])
    await store._db.tell(DOING, ("run-1",))
    overdue = T0 + OVERDUE_MS
    assert await store.peers.queue_due(overdue) == 0

    await store.peers.rescue(T0)

    assert await store.peers.queue_due(overdue) == 1
    assert await jobs(store) == [("run-1", 0, False)]


async def test_a_held_run_that_is_due_soon_is_queued_and_what_is_queued_is_left_alone(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [claimed(batch("far", wake_at=T0 + HORIZON_MS + 1), "p1")])
    await store.append(OTHER, [claimed(batch("further", wake_at=T0 + 3 * HORIZON_MS), "p1")])

    assert await store.peers.queue_due(T0 + 2) == 1
    assert await store.peers.queue_due(T0 + 2) == 0

    assert await jobs(store) == [("far", 0, True)]


async def test_a_run_that_no_process_holds_is_queued_only_when_it_is_overdue(
    store: PostgresStore,
) -> None:
    await store.append(TENANT, [batch("timer", wake_at=T0 + 500)])

    assert await store.peers.queue_due(T0 + 500 + OVERDUE_MS - 1) == 0
    assert await store.peers.queue_due(T0 + 500 + OVERDUE_MS) == 1

    assert await jobs(store) == [("timer", 0, False)]


async def test_runs_that_are_due_are_taken_many_at_a_time_and_each_by_one_process(
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
    # Nothing is queued for what was taken, and nothing is queued anew.
    assert [name for name, *_ in await jobs(store)] == ["held"]
    assert await store.peers.queue_due(T0 + 9) == 0


async def test_a_run_that_was_taken_and_not_advanced_is_due_again(store: PostgresStore) -> None:
    await store.append(TENANT, [batch(wake_at=T0)])
    assert await store.peers.take_due(T0, 10) == [(TENANT, "run-1")]

    assert await store.peers.take_due(T0 + TAKEN_MS - 1, 10) == []
    assert await store.peers.take_due(T0 + TAKEN_MS, 10) == [(TENANT, "run-1")]


async def test_a_run_that_waits_for_code_is_found_by_who_has_it_and_handed_to_who_lives(
    store: PostgresStore,
) -> None:
    waiting = replace(batch(), missing_types={"ship": "shop.ship"})
    await store.append(TENANT, [waiting])
    able = Process(name="able", kind="worker", node_types=("core.noop", "shop.ship"))

    assert await store.peers.waiting_for(("core.noop",), 10) == []
    assert await store.peers.waiting_for(able.node_types, 10) == [(TENANT, "run-1")]
    assert not await store.peers.hand_over(TENANT, "run-1", "p1", ["shop.ship"])
    await store.peers.beat(able)
    assert await store.peers.hand_over(TENANT, "run-1", "p1", ["shop.ship"])
    assert not await store.peers.hand_over(TENANT, "run-1", "able", ["shop.ship"])
    assert not await store.peers.hand_over(OTHER, "run-1", "p1", ["shop.ship"])


async def test_a_run_is_handed_only_to_a_process_with_all_the_code_of_a_node(
    store: PostgresStore,
) -> None:
    needs = code_of("openwop.llm.agent", ["local:find", "local:ship"])
    await store.append(TENANT, [replace(batch(), missing_types={"reply": needs})])
    half = Process(
        name="half", kind="worker", node_types=("openwop.llm.agent",), tools=("local:find",)
    )
    whole = replace(half, name="whole", tools=("local:find", "local:ship"))
    await store.peers.beat(half)

    assert await store.peers.waiting_for(half.code, 10) == []
    assert not await store.peers.hand_over(TENANT, "run-1", "p1", [needs])
    assert await store.peers.waiting_for(whole.code, 10) == [(TENANT, "run-1")]
    await store.peers.beat(whole)
    assert await store.peers.hand_over(TENANT, "run-1", "p1", [needs])
    assert [known.process for known in await store.peers.processes()] == [half, whole]


async def test_who_leaves_gives_its_runs_back_at_once(store: PostgresStore) -> None:
    await store.peers.beat(Process(name="p1", kind="api"))
    await store.append(TENANT, [claimed(batch(wake_at=FAR), "p1")])
    assert await store.peers.held("p1") == [(TENANT, "run-1")]

    await store.peers.leave("p1", T0 + 3)

    assert await store.peers.held("p1") == []
    assert (await row(store)).wake_at == T0 + 3
    assert await jobs(store) == [("run-1", 0, False)]
    assert (await store.peers.beat(Process(name="p1", kind="api"))).is_new


async def test_one_process_leads_until_it_is_silent_for_too_long(store: PostgresStore) -> None:
    first = await store.peers.beat(Process(name="p1", kind="api"))
    await store._db.tell(LEAD_ON)
    second = await store.peers.beat(Process(name="p2", kind="api"))
    assert (first.is_new, first.leads, second.leads) == (True, True, False)
    assert (await store.peers.beat(Process(name="p1", kind="api"))).leads

    await store._db.tell("UPDATE leases SET renewed_at = now() - interval '1 minute' RETURNING 1")

    assert (await store.peers.beat(Process(name="p2", kind="api"))).leads
    await store._db.tell(LEAD_ON)
    assert not (await store.peers.beat(Process(name="p1", kind="api"))).leads


async def test_who_leaves_gives_the_lead_up_at_once(store: PostgresStore) -> None:
    await store.peers.beat(Process(name="p1", kind="api"))
    await store.peers.beat(Process(name="p2", kind="api"))

    left = await store.peers.beat(Process(name="p1", kind="api"), leads=False)

    assert not left.leads
    assert (await store.peers.beat(Process(name="p2", kind="api"))).leads


async def test_a_notification_that_nobody_understands_is_a_reason_to_look(
    store: PostgresStore,
) -> None:
    async with aclosing(store.peers.news()) as news:
        assert await anext(news) == Listening()
        await store._db.tell("SELECT pg_notify('wopr', 'what?')")
        await store._db.tell("""SELECT pg_notify('wopr', '[null, {"newer": true}]')""")

        assert [await anext(news), await anext(news)] == [Listening(), Listening()]


async def test_the_first_word_about_a_fact_is_what_all_agree_on(store: PostgresStore) -> None:
    assert await store.peers.agree("key", "one") == "one"
    assert await store.peers.agree("key", "two") == "one"


async def test_two_are_not_in_the_same_block_at_once(store: PostgresStore) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with store.peers.alone("name"):
            inside += 1
            assert inside == 1
            await store.peers.agree("something", "in between")
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(enter)


async def test_facts_tell_of_the_queue_and_the_processes(store: PostgresStore) -> None:
    await store.peers.beat(Process(name="p1", kind="worker"))
    await store.append(TENANT, [claimed(batch("held"), "p1"), batch(wake_at=T0)])

    facts = await store.peers.facts()

    assert (facts.queue_depth, facts.held_runs) == (1, 1)
    assert facts.lease_ages.keys() == {"worker:p1"}
