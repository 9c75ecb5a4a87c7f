from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.client import Wire
from tests.support.host import ACME, INGEST, LIVE, ROLES, ServedHost, served

UNKNOWN = "wopr_live_Zq8VxK3mTtY7pLw2RbN9cHd5JfGs4AeU"


def _spend(wire: Wire, path: str = "/v1/runs/nowhere") -> httpx.Response:
    """Call until the rate limit refuses."""
    for _ in range(200):
        response = wire.get(path)
        if response.status_code == 429:
            return response
    raise AssertionError("the rate limit never came")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    with served(tmp_path_factory.mktemp("rate"), "--conformance", WOPR_RATE_LIMIT="1") as running:
        yield running


def test_too_many_requests_get_a_retry_time(slow: ServedHost, connect: Callable[..., Wire]) -> None:
    response = _spend(connect(ACME, slow))

    details = response.json()["details"]
    assert response.json()["error"] == "rate_limited"
    assert abs(int(response.headers["retry-after"]) * 1000 - details["retryAfterMs"]) <= 1000
    assert details["scope"] == "key"
    assert details["limit"] == 1


def test_the_limit_of_one_key_is_not_the_limit_of_another(
    slow: ServedHost, connect: Callable[..., Wire]
) -> None:
    _spend(connect(ACME, slow))

    assert connect(LIVE, slow).get("/v1/runs").status_code == 200


def test_the_rate_limit_is_checked_after_the_key_and_before_the_scope(
    slow: ServedHost, connect: Callable[..., Wire]
) -> None:
    assert _spend(connect(INGEST, slow), "/v1/runs").status_code == 429

    assert connect(UNKNOWN, slow).get("/v1/runs").status_code == 401


def test_a_key_can_continue_after_its_retry_time(
    slow: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ROLES["developer"], slow)
    waits = int(_spend(wire).headers["retry-after"])
    deadline = time.monotonic() + waits + 1

    began = time.monotonic()
    while wire.get("/v1/runs").status_code == 429:
        # The start of a call counts: its response may be slow.
        assert began < deadline
        began = time.monotonic()


def test_public_paths_are_not_limited(slow: ServedHost, connect: Callable[..., Wire]) -> None:
    wire = connect(None, slow)

    assert all(wire.get("/healthz").status_code == 200 for _ in range(30))


def test_at_capacity_the_host_reports_it_and_recovers(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", WOPR_MAX_IN_FLIGHT="1")
    wire = connect(ACME, host)
    body = {"workflowId": "conformance-noop"}
    refused: list[httpx.Response] = []

    def create(caller: Wire) -> None:
        """Start runs until one client of this test was refused."""
        deadline = time.monotonic() + 60
        while not refused and time.monotonic() < deadline:
            response = caller.post("/v1/runs", body)
            if response.status_code != 201:
                refused.append(response)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, [connect(ACME, host) for _ in range(4)]))

    assert {response.status_code for response in refused} == {503}
    first = refused[0]
    assert first.json()["error"] == "service_unavailable"
    assert first.headers["retry-after"] == str(first.json()["details"]["retryAfter"])
    assert wire.get("/healthz").status_code == 200
    assert wire.post("/v1/runs", body).status_code == 201
    assert wire.document("/.well-known/openwop")["production"]["backpressure"]["inflightCap"] == 1


def test_a_host_for_one_request_at_a_time_accepts_one(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_MAX_IN_FLIGHT="1")

    assert connect(ACME, host).get("/v1/runs").status_code == 200
