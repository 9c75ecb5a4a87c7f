"""PostgreSQL only: appends in groups, and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from tests.support.definitions import fresh
from tests.support.feedback_rows import annotation
from tests.support.rows import OTHER, TENANT, answer, batch, log
from wopr.protocol.errors import Conflict, SequenceTaken, Unavailable
from wopr.store.port import Batch, Store
from wopr.store.port.peers import ListenerConnected, Notification, RunAnnotated, RunAppended
from wopr.store.postgres import PostgresStore

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60
# Only this database: other tests listen on the same server. Returns when the listeners are gone.
CUT = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND query = 'LISTEN wopr'
"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_url)
    yield opened
    await opened.close()


async def outcome(store: Store, step: Batch, tenant: str = TENANT) -> str:
    try:
        await store.append(tenant, [step])
    except (Conflict, Unavailable) as refused:
        return refused.code
    return "ok"


async def test_a_refused_call_does_not_affect_others_in_its_group(store: Store) -> None:
    await store.append(TENANT, [batch("taken", idempotency=answer(b"old"))])
    steps = [batch(f"run-{n:02}") for n in range(20)]
    steps[3] = batch("taken")
    steps[7] = batch("taken", first=9)
    steps[11] = batch("run-11", idempotency=answer(b"old"))

    outcomes = await asyncio.gather(*(outcome(store, step) for step in steps))

    assert outcomes[3] == outcomes[7] == "sequence_taken"
    assert outcomes[11] == "idempotency_in_flight"
    assert outcomes.count("ok") == 17
    assert await store.open_run_counts() == {"running": 18}


async def test_a_call_that_breaks_its_group_fails_alone(store: Store) -> None:
    steps = [batch(f"run-{n:02}") for n in range(20)]
    steps[5] = batch("run-05", updated_at=2**70)

    outcomes = await asyncio.gather(*(outcome(store, step) for step in steps))

    assert outcomes[5] == "service_unavailable"
    assert outcomes.count("ok") == 19
    assert await store.run(TENANT, "run-05") is None


async def test_tenants_share_a_group_but_see_only_their_own_rows(store: Store) -> None:
    steps = [(batch(f"run-{n}"), TENANT if n % 2 else OTHER) for n in range(20)]

    await asyncio.gather(*(outcome(store, step, tenant) for step, tenant in steps))

    for step, tenant in steps:
        assert await log(store, step.run.run_id, tenant) == [b"0"]
        assert await log(store, step.run.run_id, TENANT if tenant == OTHER else OTHER) == []


async def test_every_queued_append_is_committed(store: Store) -> None:
    async def append_on(run_id: str) -> None:
        for first in range(60):
            await store.append(TENANT, [batch(run_id, first)])

    with anyio.fail_after(60):
        await asyncio.gather(*(append_on(f"run-{n}") for n in range(4)))

    assert [len(await log(store, f"run-{n}")) for n in range(4)] == [60] * 4


async def test_appends_that_wake_each_other_s_runs_do_not_deadlock(store: Store) -> None:
    ids = [f"run-{n}" for n in range(6)]
    await store.append(TENANT, [batch(run_id) for run_id in ids])

    async def nudge(n: int) -> None:
        for first in range(1, 16):
            await store.append(TENANT, [batch(ids[n], first, wakes=[ids[n - 1], ids[n - 2]])])

    with anyio.fail_after(60):
        await asyncio.gather(*(nudge(n) for n in range(6)))

    assert [len(await log(store, run_id)) for run_id in ids] == [16] * 6


async def test_an_invalid_text_finds_nothing(store: Store) -> None:
    assert await store.run(TENANT, "no\0run") is None
    assert await store.read(TENANT, "no\0run") == []
    assert await store.workflow(TENANT, "no\0workflow", None) is None


async def heard(store: PostgresStore, ready: anyio.Event, wanted: int) -> list[Notification]:
    found: list[Notification] = []
    with anyio.fail_after(DEADLINE_SECONDS):
        async for news in store.peers.notifications():
            if isinstance(news, ListenerConnected):
                ready.set()
            found.append(news)
            if len(found) == wanted:
                break
    return found


async def test_a_commit_notifies_listeners_of_the_run_and_sequence(store: PostgresStore) -> None:
    ready = anyio.Event()
    listening = asyncio.create_task(heard(store, ready, 4))
    await ready.wait()

    await store.append(TENANT, [batch("run-1", count=3)])
    with pytest.raises(SequenceTaken):
        await store.append(TENANT, [batch("run-1")])
    await store.append(OTHER, [batch("run-2"), batch("run-3")])

    news = await listening
    assert news[0] == ListenerConnected()
    assert sorted(news[1:], key=repr) == [
        RunAppended(tenant=TENANT, run_id="run-1", sequence=2),
        RunAppended(tenant=OTHER, run_id="run-2", sequence=0),
        RunAppended(tenant=OTHER, run_id="run-3", sequence=0),
    ]


async def test_an_annotation_notifies_listeners(store: PostgresStore) -> None:
    ready = anyio.Event()
    await store.append(TENANT, [batch()])
    listening = asyncio.create_task(heard(store, ready, 2))
    await ready.wait()

    await store.put_annotation(TENANT, annotation("ann-1"))

    assert (await listening)[1] == RunAnnotated(
        tenant=TENANT, run_id="run-1", annotation_id="ann-1"
    )


async def test_a_disconnected_listener_reconnects_and_reports_the_gap(store: PostgresStore) -> None:
    ready = anyio.Event()
    listening = asyncio.create_task(heard(store, ready, 3))
    await ready.wait()

    async with store._db.pool.connection() as connection:
        await connection.execute("RESET ROLE; SET ROLE NONE")
        await connection.execute(CUT)
        await connection.execute("SET ROLE wopr_service")
    while not listening.done():
        await store.append(TENANT, [batch(fresh("run"))])

    news = await listening
    assert news[:2] == [ListenerConnected(), ListenerConnected()]
    assert isinstance(news[2], RunAppended)
