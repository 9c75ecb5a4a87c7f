"""A database that goes away for a while: refused at once meanwhile, served soon after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from tests.fault.cluster import Cluster, cluster
from tests.fault.hosts import eventually
from tests.postgres.databases import Databases
from tests.postgres.own import OwnServer, own_server
from tests.wire.definitions import delay, workflow
from wopr.store.options import StoreOptions
from wopr.store.postgres.address import address_of
from wopr.store.postgres.database import Database
from wopr.store.postgres.pool import LONGEST_DELAY_SECONDS, _Attempt
from wopr.store.postgres.tokens import TokenKey

pytestmark = pytest.mark.timeout(300)

# Longer than a client of the tests waits: who waits for a connection gets no answer in time.
PATIENCE = "250"
LONG_MS = 600_000


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with own_server() as running:
        yield running


@pytest.fixture
def ours(server: OwnServer, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(
        server.url, tmp_path, apis=1, workers=0, WOPR_DB_POOL_TIMEOUT_SECONDS=PATIENCE
    ) as running:
        yield running


def test_requests_are_refused_while_the_database_is_away_and_served_when_it_is_back(
    server: OwnServer, ours: Cluster
) -> None:
    [api] = ours.apis
    run_id = api.wire.create("conformance-noop")

    server.stop()
    for _ in range(3):
        refused = api.wire.get(f"/v1/runs/{run_id}")
        assert refused.status_code == 503
        assert refused.json()["error"] == "service_unavailable"
        assert refused.headers["retry-after"] == "1"
    server.start()

    eventually(lambda: api.wire.get(f"/v1/runs/{run_id}").status_code == 200)
    eventually(lambda: api.wire.get("/readyz").status_code == 200)
    api.wire.finished(api.wire.create("conformance-noop"))


def test_a_stream_whose_database_goes_away_ends_without_a_traceback(
    server: OwnServer, ours: Cluster
) -> None:
    [api] = ours.apis
    run_id = api.wire.create(api.wire.register(workflow([delay("sleep", LONG_MS)])))
    started, ended = threading.Event(), threading.Event()

    def read() -> None:
        with api.wire.stream(run_id) as frames:
            for _ in frames:
                started.set()
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(60)
    server.stop()

    assert ended.wait(60)
    reader.join()
    assert "a stream ends early" in api.log()
    assert "Traceback" not in api.log()
    server.start()
    eventually(lambda: api.wire.get("/readyz").status_code == 200)


def test_attempts_to_connect_are_never_more_than_a_second_apart_and_never_given_up() -> None:
    attempt = _Attempt()
    delays = []
    for minute in range(600):
        attempt.update_delay(minute * 60.0)
        delays.append(attempt.delay)
        assert not attempt.time_to_give_up(minute * 60.0)

    assert max(delays) == LONGEST_DELAY_SECONDS
    assert min(delays) > 0


@pytest.mark.anyio
async def test_the_wait_for_a_connection_is_no_part_of_a_slow_statement(
    databases: Databases,
) -> None:
    with databases.new() as url:
        db = Database(
            address_of(url), StoreOptions(pool_size=1, slow_statement_ms=200), TokenKey.random()
        )
        await db.open()
        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(db.ask, "SELECT pg_sleep(1)")
                for _ in range(20):
                    tasks.start_soon(db.ask, "SELECT 1")
        await db.close()

    assert {line["statement"] for line in logs} == {"SELECT pg_sleep(1)"}


@pytest.mark.anyio
async def test_a_statement_that_is_slow_again_and_again_is_logged_once(
    databases: Databases,
) -> None:
    with databases.new() as url:
        db = Database(address_of(url), StoreOptions(slow_statement_ms=1), TokenKey.random())
        await db.open()
        with capture_logs() as logs:
            for _ in range(5):
                await db.ask("SELECT pg_sleep(0.01)")
        await db.close()

    assert [line["event"] for line in logs] == ["slow statement"]
