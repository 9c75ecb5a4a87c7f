"""A database outage: requests are refused at once, and served soon after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from tests.fault.cluster import Cluster, cluster
from tests.support.definitions import delay, workflow
from tests.support.eventually import eventually
from tests.support.postgres.databases import Databases
from tests.support.postgres.restartable import OwnServer, own_server
from wopr.store.port.store import StoreOptions
from wopr.store.postgres.database import Database
from wopr.store.postgres.pool import LONGEST_DELAY_SECONDS, _ReconnectAttempt, parse_address
from wopr.store.postgres.tokens import TokenKey

pytestmark = pytest.mark.timeout(300)

# Longer than a test client waits: a request that waits for a connection gets no timely response.
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


def test_requests_are_refused_during_a_database_outage_and_served_after_it(
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


def test_a_stream_ends_without_a_traceback_when_the_database_fails(
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


def test_connection_attempts_continue_at_least_once_a_second() -> None:
    attempt = _ReconnectAttempt()
    delays = []
    for minute in range(600):
        attempt.update_delay(minute * 60.0)
        delays.append(attempt.delay)
        assert not attempt.time_to_give_up(minute * 60.0)

    assert max(delays) == LONGEST_DELAY_SECONDS
    assert min(delays) > 0


@pytest.mark.anyio
async def test_waiting_for_a_connection_does_not_count_as_a_slow_statement(
    databases: Databases,
) -> None:
    with databases.lent() as url:
        db = Database(
            parse_address(url), StoreOptions(pool_size=1, slow_statement_ms=1000), TokenKey.random()
        )
        await db.open()
        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(db.read_host, "SELECT pg_sleep(2)")
                for _ in range(20):
                    tasks.start_soon(db.read_host, "SELECT 1")
        await db.close()

    assert {line["statement"] for line in logs} == {"SELECT pg_sleep(2)"}


@pytest.mark.anyio
async def test_a_repeatedly_slow_statement_is_logged_once(
    databases: Databases,
) -> None:
    with databases.lent() as url:
        db = Database(parse_address(url), StoreOptions(slow_statement_ms=1), TokenKey.random())
        await db.open()
        with capture_logs() as logs:
            for _ in range(5):
                await db.read_host("SELECT pg_sleep(0.01)")
        await db.close()

    assert [line["event"] for line in logs] == ["slow statement"]
