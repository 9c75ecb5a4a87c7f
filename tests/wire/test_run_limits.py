"""The maximum numbers of descendants of a run and of active runs of a tenant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, fresh, node, workflow
from tests.support.eventually import eventually
from tests.support.host import GLOBEX, ServedHost
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

NewHost = Callable[..., ServedHost]
LONG_MS = 3_600_000


def calls_itself_twice() -> JsonObject:
    own = fresh("bomb")
    config = {"workflowId": own}
    twice = [node(name, "core.subWorkflow", config=config) for name in ("left", "right")]
    return workflow(twice, id=own, edges=[])


def all_runs(wire: Wire, **where: str) -> list[JsonObject]:
    found: list[JsonObject] = []
    cursor: dict[str, str] = {}
    while True:
        page = wire.document("/v1/runs", params={"limit": "200", **where, **cursor})
        found += page["items"]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


def test_a_workflow_that_calls_itself_twice_fails_at_the_limit_of_descendants(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_DESCENDANTS="20"))
    bomb = wire.register(calls_itself_twice())

    found = wire.run(bomb)
    eventually(lambda: all(run["status"] in ("failed", "cancelled") for run in all_runs(wire)))

    assert found["status"] == "failed"
    runs = all_runs(wire)
    assert len(runs) == 21
    errors = [wire.snapshot(run["runId"]).get("error", {}) for run in runs]
    refused = [error for error in errors if error.get("code") == "descendant_limit_exceeded"]
    assert refused
    assert "the limit is 20" in refused[0]["message"]
    assert refused[0]["details"] == {"limit": 20, "current": 20, "rootRunId": found["runId"]}


def test_a_fork_counts_as_a_descendant_of_the_same_root(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_DESCENDANTS="2"))
    source = wire.run(wire.register(workflow([node("a")])))["runId"]
    first = wire.post(f"/v1/runs/{source}:fork", {"mode": "replay"}).json()["runId"]
    wire.finished(first)

    second = wire.post(f"/v1/runs/{first}:fork", {"mode": "replay"})
    third = wire.post(f"/v1/runs/{source}:fork", {"mode": "replay"})

    assert second.status_code == 201
    assert third.status_code == 409
    assert third.json()["error"] == "descendant_limit_exceeded"
    assert third.json()["details"] == {"limit": 2, "current": 2, "rootRunId": source}


def test_a_create_beyond_the_limit_of_active_runs_is_answered_429_until_a_run_has_ended(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_MAX_ACTIVE_RUNS="2")
    wire = connect(at=host)
    waits = wire.register(workflow([delay("wait", LONG_MS)]))
    first, _ = wire.create(waits), wire.create(waits)

    refused = wire.post("/v1/runs", {"workflowId": waits})

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    body = refused.json()
    assert body["error"] == "quota_exceeded"
    quota = {name: body["details"][name] for name in ("quota", "limit", "current", "scope")}
    assert quota == {"quota": "activeRuns", "limit": 2, "current": 2, "scope": "tenant"}
    assert body["details"]["retryAfterMs"] == int(refused.headers["retry-after"]) * 1000

    wire.post(f"/v1/runs/{first}/cancel")
    eventually(lambda: wire.post("/v1/runs", {"workflowId": waits}).status_code == 201)


def test_the_active_runs_of_one_tenant_do_not_count_for_another(
    connect: Connect, new_host: NewHost
) -> None:
    host = new_host(WOPR_MAX_ACTIVE_RUNS="1")
    acme, globex = connect(at=host), connect(GLOBEX, at=host)
    definition = workflow([delay("wait", LONG_MS)])
    acme.register(definition)
    globex.register(definition)
    acme.create(definition["id"])

    assert acme.post("/v1/runs", {"workflowId": definition["id"]}).status_code == 429
    assert globex.post("/v1/runs", {"workflowId": definition["id"]}).status_code == 201


def test_the_count_of_active_runs_survives_a_restart(connect: Connect, new_host: NewHost) -> None:
    host = new_host(WOPR_MAX_ACTIVE_RUNS="1")
    wire = connect(at=host)
    waits = wire.register(workflow([delay("wait", LONG_MS)]))
    wire.create(waits)

    host.restart()

    wire = connect(at=host)
    assert wire.post("/v1/runs", {"workflowId": waits}).status_code == 429


def test_a_run_that_ends_at_once_is_not_counted_as_active(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_ACTIVE_RUNS="1"))
    short = wire.register(workflow([node("a"), node("b")]))

    statuses = [wire.run(short)["status"] for _ in range(5)]

    assert statuses == ["completed"] * 5


def test_a_child_beyond_the_limit_of_active_runs_fails_the_node_of_its_parent(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_ACTIVE_RUNS="1"))
    child = wire.register(workflow([delay("wait", LONG_MS)]))
    parent = wire.register(
        workflow([node("call", "core.subWorkflow", config={"workflowId": child})])
    )

    found = wire.run(parent)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "quota_exceeded"
    assert "activeRuns" in found["error"]["message"]
    assert [run["runId"] for run in all_runs(wire)] == [found["runId"]]


def test_a_dispatched_worker_beyond_the_limit_is_a_failed_dispatch(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host("--conformance", WOPR_MAX_DESCENDANTS="1"))
    child = wire.register(workflow([node("a")]))
    decision = {"kind": "next-worker", "nextWorkerIds": [child, child], "confidence": 0.9}
    definition = workflow(
        [
            node(
                "decide",
                "core.orchestrator.supervisor",
                config={"rules": [{"when": "true", "decision": decision}]},
                agent={"agentId": "core.boss"},
            ),
            node("dispatch", "core.dispatch"),
        ],
        edges=[edge("decide", "dispatch")],
    )

    wire.register(definition)
    found = wire.run(definition["id"])

    failed = [
        event["payload"]
        for event in wire.log(found["runId"])
        if event["type"] == "core.workflowChain.event"
        and event["payload"]["phase"] == "dispatch.failed"
    ]
    assert [payload["error"]["code"] for payload in failed] == ["descendant_limit_exceeded"]


def test_a_limit_of_0_means_no_limit(connect: Connect, new_host: NewHost) -> None:
    wire = connect(at=new_host(WOPR_MAX_DESCENDANTS="0", WOPR_MAX_ACTIVE_RUNS="0"))
    child = wire.register(workflow([node("a")]))
    twice = [node(n, "core.subWorkflow", config={"workflowId": child}) for n in ("a", "b")]
    parent = wire.register(workflow(twice))

    assert wire.run(parent)["status"] == "completed"
