"""Exhausted database resources are reported to the client, and no acknowledged write is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.fault.cluster import LOCAL, Cluster, cluster, stream_text
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX
from tests.support.postgres.databases import Databases

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def ours(databases: Databases, tmp_path: Path) -> Iterator[Cluster]:
    with (
        databases.lent() as url,
        cluster(
            url,
            tmp_path,
            WOPR_DB_POOL_SIZE="3",
            WOPR_DB_POOL_TIMEOUT_SECONDS="1",
        ) as running,
    ):
        yield running


@contextmanager
def locked(ours: Cluster) -> Iterator[None]:
    """Block every append, each with its connection."""
    with psycopg.connect(ours.url, options=LOCAL) as connection:
        connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


def ask(url: str, method: str, path: str, **options: object) -> int:
    headers = {"Authorization": f"Bearer {ACME}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        return client.request(method, path, **options).status_code  # type: ignore[arg-type]  # httpx's own


def create_many(ours: Cluster, count: int) -> list[int]:
    body = {"workflowId": "conformance-noop"}
    with ThreadPoolExecutor(count) as several:
        asked = [
            several.submit(ask, ours.apis[n % 2].url, "POST", "/v1/runs", json=body)
            for n in range(count)
        ]
        return [each.result() for each in asked]


def is_ready(ours: Cluster) -> list[int]:
    return [ask(api.url, "GET", "/readyz") for api in ours.apis]


def test_an_exhausted_connection_pool_is_reported_and_recovers(ours: Cluster) -> None:
    running = stream_text(ours.apis[0], 40, 300)
    ours.holder_of(running)

    with ThreadPoolExecutor(24) as beside:
        with locked(ours):
            creating = [beside.submit(create_many, ours, 6) for _ in range(2)]
            path = f"/v1/runs/{running}"
            reading = [beside.submit(ask, ours.apis[0].url, "GET", path) for _ in range(12)]
            eventually(lambda: any(each.done() and each.result() == 503 for each in reading))
            eventually(lambda: is_ready(ours) == [503, 503])
        codes = [code for each in creating for code in each.result()]
        assert {each.result() for each in reading} <= {200, 503}

    assert set(codes) <= {201, 503}
    eventually(lambda: is_ready(ours) == [200, 200])
    # For some of them, a connection that is slow for a second counts as missing.
    eventually(lambda: create_many(ours, 4) == [201] * 4)
    ours.until_over()
    made = ours.one("SELECT count(*) FROM runs WHERE workflow_id = 'conformance-noop'")
    assert codes.count(201) + 4 <= made
    assert ours.chunks(running) == [str(n) for n in range(40)]
    ours.check()


def test_a_tenant_does_not_exceed_its_runs_in_flight_and_others_are_not_delayed(
    databases: Databases, tmp_path: Path
) -> None:
    with (
        databases.lent() as url,
        cluster(
            url,
            tmp_path,
            apis=1,
            workers=1,
            api_options=("--no-worker",),
            WOPR_MAX_HELD_RUNS_PER_TENANT="2",
        ) as ours,
    ):
        busy = [stream_text(ours.apis[0], 30, 200) for _ in range(6)]
        eventually(lambda: held(ours) == 2)
        with Wire(ours.apis[0].url, GLOBEX) as other:
            other.run("conformance-delay", {"delayMs": 50})

        # The other tenant's run ended before some of these had started.
        assert ours.unfinished()
        counts: list[int] = []

        def are_over() -> bool:
            counts.append(held(ours))
            return ours.unfinished() == 0

        eventually(are_over)
        assert max(counts) <= 2
        assert {ours.status(run_id) for run_id in busy} == {"completed"}
        ours.check()


def held(ours: Cluster) -> int:
    return int(ours.one("SELECT count(*) FROM runs WHERE holder IS NOT NULL"))
