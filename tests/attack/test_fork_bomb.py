"""A workflow that calls itself twice must not exhaust the host."""

from __future__ import annotations

from pathlib import Path

from tests.attack.attacked_host import HonestClient, attacked
from tests.support.client import TERMINAL, Wire
from tests.support.definitions import delay, fresh, node, workflow
from tests.support.eventually import eventually
from wopr.protocol.documents import JsonObject

MOST = 300


def test_a_workflow_that_calls_itself_twice_is_stopped_with_the_reason(tmp_path: Path) -> None:
    with attacked(tmp_path, WOPR_MAX_DESCENDANTS=str(MOST)) as host, host.client() as mallory:
        own = fresh("bomb")
        calls = [
            node(name, "core.subWorkflow", config={"workflowId": own}) for name in ("left", "right")
        ]
        mallory.register(workflow(calls, id=own, edges=[]))

        with HonestClient(host) as honest:
            first = mallory.finished(mallory.create(own))
            eventually(lambda: _all_ended(mallory))
            honest.wait_for_round()

        assert first["status"] == "failed"
        assert _codes(mallory) >= {"descendant_limit_exceeded"}
        assert len(_runs(mallory)) == MOST + 1
        assert honest.growth_mib < 100
        host.kill_and_recover()


def test_a_tenant_that_starts_runs_continuously_is_refused_and_others_are_not(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path, WOPR_MAX_ACTIVE_RUNS="200") as host, host.client() as mallory:
        waits = mallory.register(workflow([delay("wait", 3_600_000)]))

        with HonestClient(host) as honest:
            answers = [mallory.post("/v1/runs", {"workflowId": waits}) for _ in range(1000)]
            honest.wait_for_round()

        assert sum(answer.status_code == 201 for answer in answers) == 200
        refused = answers[-1]
        assert (refused.status_code, refused.json()["error"]) == (429, "quota_exceeded")
        assert refused.json()["details"]["quota"] == "activeRuns"
        assert refused.headers["retry-after"]
        assert honest.growth_mib < 100
        host.kill_and_recover()


def _runs(wire: Wire) -> list[JsonObject]:
    found: list[JsonObject] = []
    cursor: dict[str, str] = {}
    while True:
        page = wire.document("/v1/runs", params={"limit": "200"} | cursor)
        found += page["items"]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


def _all_ended(wire: Wire) -> bool:
    return all(run["status"] in TERMINAL for run in _runs(wire))


def _codes(wire: Wire) -> set[str]:
    failed = [run["runId"] for run in _runs(wire) if run["status"] == "failed"]
    return {wire.snapshot(run_id)["error"]["code"] for run_id in failed[:50]}
