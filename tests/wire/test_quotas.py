"""Quotas of tenants and keys: named in refusals, shown, and set by an operator."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, workflow
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, LIVE, VIEWER, ServedHost
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores
refused_unread = pytest.mark.sqlite("these requests are refused before the store is asked")

NewHost = Callable[..., ServedHost]
LONG_MS = 3_600_000


def until_refused(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Send requests until the host refuses one."""
    found: list[httpx.Response] = []

    def is_refused() -> bool:
        found[:] = [ask()]
        return found[0].status_code == 429

    eventually(is_refused)
    return found[0]


def refused(response: httpx.Response) -> JsonObject:
    details: JsonObject = response.json()["details"]
    assert response.json()["error"] == "quota_exceeded"
    assert abs(int(response.headers["retry-after"]) * 1000 - details["retryAfterMs"]) <= 1000
    assert details["quota"] in response.json()["message"]
    return details


def use(wire: Wire, quota: str, scope: str = "tenant") -> JsonObject:
    report = wire.document("/v1/usage")
    found: list[JsonObject] = report["quotas"]
    return next(each for each in found if (each["quota"], each["scope"]) == (quota, scope))


def create(wire: Wire, workflow_id: str) -> Callable[[], httpx.Response]:
    return lambda: wire.post("/v1/runs", {"workflowId": workflow_id})


def test_requests_of_all_keys_of_a_tenant_are_limited_together(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_QUOTA_REQUESTS_PER_SECOND="2")
    wires = [connect(key, host) for key in (ACME, LIVE)]

    answers = [wire.get("/v1/runs") for _ in range(20) for wire in wires]

    late = next(answer for answer in answers if answer.status_code == 429)
    details = late.json()["details"]
    assert late.json()["error"] == "rate_limited"
    assert (details["quota"], details["scope"], details["limit"]) == (
        "requestsPerSecond",
        "tenant",
        2,
    )
    assert connect(GLOBEX, host).get("/v1/runs").status_code == 200


def test_a_tenant_over_its_stored_bytes_cannot_start_runs(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host("--conformance", WOPR_QUOTA_STORED_BYTES="5000")
    wire = connect(ACME, host)

    details = refused(until_refused(create(wire, "conformance-noop")))

    assert (details["quota"], details["scope"], details["limit"]) == (
        "storedBytes",
        "tenant",
        5000,
    )
    assert details["current"] >= 5000
    assert use(wire, "storedBytes")["current"] >= 5000
    assert connect(GLOBEX, host).run("conformance-noop")["status"] == "completed"


def test_a_tenant_that_appends_too_fast_is_delayed_and_not_failed(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host("--conformance", WOPR_QUOTA_EVENTS_PER_SECOND="4")
    wire = connect(ACME, host)
    waiting = wire.create(wire.register(workflow([delay("sleep", 50)])))

    details = refused(until_refused(create(wire, "conformance-noop")))

    assert details["quota"] == "eventsPerSecond"
    assert wire.finished(waiting)["status"] == "completed"
    assert connect(GLOBEX, host).run("conformance-noop")["status"] == "completed"


def test_usage_belongs_to_the_caller_s_tenant(connect: Connect, new_host: NewHost) -> None:
    host = new_host()
    acme, globex = connect(ACME, host), connect(GLOBEX, host)
    acme.create(acme.register(workflow([delay("wait", LONG_MS)])))

    assert use(acme, "activeRuns") == {
        "quota": "activeRuns",
        "scope": "tenant",
        "description": "Runs that have not ended",
        "current": 1,
        "limit": 10_000,
    }
    assert use(globex, "activeRuns")["current"] == 0
    assert use(acme, "storedBytes")["current"] > 0
    assert use(globex, "storedBytes")["current"] == 0
    assert globex.document("/v1/usage")["tenant"] == "globex"
    tokens = use(acme, "modelTokensPerDay")
    assert (tokens["current"], tokens["window"]) == (0, "day")
    assert tokens["resetsAt"].endswith("T00:00:00.000Z")
    assert use(acme, "requestsPerSecond", "key")["limit"] == 5000


def test_an_operator_sets_and_resets_a_quota_of_one_tenant(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host()
    key = host.command("keys", "create", "--tenant", "ops", "--scope", "quotas:manage").split()[0]
    operator, wire = connect(key, host), connect(ACME, host)
    sleeps = wire.register(workflow([delay("wait", LONG_MS)]))

    made = operator.request("PUT", "/v1/quotas/acme/activeRuns", json={"limit": 1})
    wire.create(sleeps)
    details = refused(until_refused(create(wire, sleeps)))
    listed = operator.document("/v1/quotas")
    gone = operator.request("DELETE", "/v1/quotas/acme/activeRuns")
    again = operator.request("DELETE", "/v1/quotas/acme/activeRuns")

    assert made.json() == {"tenant": "acme", "quota": "activeRuns", "limit": 1}
    assert (details["quota"], details["limit"], details["current"]) == ("activeRuns", 1, 1)
    assert listed["items"] == [made.json()]
    assert (gone.status_code, again.status_code) == (204, 404)
    assert use(wire, "activeRuns")["limit"] == 10_000


@refused_unread
def test_no_key_of_a_tenant_can_change_its_quotas(acme: Wire) -> None:
    answers = [
        acme.get("/v1/quotas"),
        acme.request("PUT", "/v1/quotas/acme/activeRuns", json={"limit": 0}),
        acme.request("DELETE", "/v1/quotas/acme/activeRuns"),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert answers[0].json()["details"]["scopeRequired"] == "quotas:manage"


@refused_unread
def test_an_unknown_quota_is_refused_with_the_known_ones(
    connect: Connect, host: ServedHost
) -> None:
    key = host.command("keys", "create", "--tenant", "ops", "--scope", "quotas:manage").split()[0]
    operator = connect(key)

    unknown = operator.request("PUT", "/v1/quotas/acme/coffee", json={"limit": 1})
    of_key = operator.request(
        "PUT", "/v1/quotas/acme/activeRuns", json={"limit": 1, "keyId": "env-1"}
    )
    negative = operator.request("PUT", "/v1/quotas/acme/activeRuns", json={"limit": -1})

    assert [each.status_code for each in (unknown, of_key, negative)] == [400, 400, 400]
    assert "activeRuns" in unknown.json()["message"]
    assert "for a key" in of_key.json()["message"]


def test_a_quota_outside_the_integers_of_json_is_refused_and_not_stored(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host()
    key = host.command("keys", "create", "--tenant", "ops", "--scope", "quotas:manage").split()[0]
    operator = connect(key, host)

    def put(limit: int) -> httpx.Response:
        return operator.request("PUT", "/v1/quotas/acme/activeRuns", json={"limit": limit})

    answers = [put(limit) for limit in (2**53, 2**63 - 1, 2**63, 2**64, 10**30)]

    assert [answer.status_code for answer in answers] == [400] * 5
    assert operator.document("/v1/quotas")["items"] == []
    assert put(2**53 - 1).json()["limit"] == 2**53 - 1


@pytest.mark.sqlite("a host reads the quotas again after a fixed time on either store")
def test_a_quota_set_on_the_command_line_reaches_a_running_host(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host()
    wire = connect(VIEWER, host)

    host.command("quotas", "set", "activeRuns", "7", "--tenant", "acme")

    eventually(lambda: use(wire, "activeRuns")["limit"] == 7)
    assert "activeRuns" in host.command("quotas", "show")
    host.command("quotas", "reset", "activeRuns", "--tenant", "acme")
    eventually(lambda: use(wire, "activeRuns")["limit"] == 10_000)
    host.command("quotas", "recount")
    shown = host.command("usage", "--url", host.url, "--api-key", VIEWER)
    assert "storedBytes" in shown
    assert "workflowVersions" in shown
    assert "10,000" in shown


def test_the_quota_of_streams_of_one_tenant_is_set_and_shown(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host()
    key = host.command("keys", "create", "--tenant", "ops", "--scope", "quotas:manage").split()[0]
    operator, wire = connect(key, host), connect(ACME, host)
    run_id = wire.create(wire.register(workflow([delay("wait", LONG_MS)])))
    operator.request("PUT", "/v1/quotas/acme/streams", json={"limit": 1})

    with wire.stream(run_id) as frames:
        next(frames)
        shown = use(wire, "streams")
        second = connect(ACME, host).get(f"/v1/runs/{run_id}/events")

    assert (shown["current"], shown["limit"]) == (1, 1)
    assert second.status_code == 429
    details = second.json()["details"]
    assert (details["quota"], details["limit"], details["current"]) == ("streams", 1, 1)
    assert 'the quota "streams" of this tenant is 1' in second.json()["message"]
    assert "max_streams_per_tenant" not in second.json()["message"]
