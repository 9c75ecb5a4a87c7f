"""The test seams of `--conformance`: their results, their users, and hosts without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, variable, workflow
from tests.support.forks import forked
from tests.support.host import ACME, LIVE, ServedHost, served
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

SAMPLE = "/v1/host/sample"
CAUTIOUS = "core.conformance.agents.cautious"
RECEIVER = "https://example.com/conformance"
UNKNOWN = "00000000-0000-7000-8000-000000000000"
SEAMS: tuple[tuple[str, str, JsonObject | None], ...] = (
    ("POST", f"{SAMPLE}/workflows", {"workflowId": "w", "nodes": [{"nodeId": "a", "typeId": "t"}]}),
    ("POST", f"{SAMPLE}/agents/{CAUTIOUS}/dispatch", {}),
    ("POST", f"{SAMPLE}/test/capability-toggle", {"reset": True}),
    ("POST", f"{SAMPLE}/test/surface", {"tenantId": "a", "surface": "webhooks", "op": "list"}),
    ("POST", f"{SAMPLE}/test/idempotency/concurrent-claim", {"executors": 2}),
    ("POST", f"{SAMPLE}/test/runs/{UNKNOWN}/variables", {"variables": {}}),
    ("POST", f"{SAMPLE}/authorization/decide", {"principal": "p", "action": "runs:read"}),
    ("POST", f"{SAMPLE}/governance/approval-gate", {"scenario": "grant"}),
    ("GET", "/v1/packs", None),
    ("GET", "/v1/packs/export", None),
)


@pytest.fixture(scope="module")
def plain_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    with served(tmp_path_factory.mktemp("plain")) as running:
        yield running


def answered(wire: Wire, path: str, body: Json) -> JsonObject:
    response = wire.post(path, body)
    assert response.status_code == 200, response.text
    document: JsonObject = response.json()
    return document


def test_a_host_without_conformance_has_no_seams(connect: Connect, plain_host: ServedHost) -> None:
    wire = connect(ACME, plain_host)

    for method, path, body in SEAMS:
        response = wire.request(method, path, **({} if body is None else {"json": body}))
        assert (response.status_code, response.json()["error"]) == (404, "not_found"), path


def test_seams_are_for_test_keys_only(connect: Connect) -> None:
    wire = connect(LIVE)

    for method, path, body in SEAMS:
        response = wire.request(method, path, **({} if body is None else {"json": body}))
        assert (response.status_code, response.json()["error"]) == (403, "forbidden"), path


def supervised(child: str) -> JsonObject:
    plan = [
        {"kind": "next-worker", "nextWorkerIds": [child]},
        {"kind": "terminate", "reason": "goal-reached"},
    ]
    return {
        "workflowId": fresh("hvmap"),
        "nodes": [
            {
                "nodeId": "supervisor",
                "typeId": "core.orchestrator.supervisor",
                "config": {"mockDispatchPlan": plan},
            },
            {
                "nodeId": "dispatch",
                "typeId": "core.dispatch",
                "config": {"outputMapping": {"parentResult": "childOutcome"}},
            },
        ],
    }


def test_a_sample_workflow_runs_its_nodes_in_order(acme: Wire) -> None:
    sample = supervised("conformance-dispatch-deterministic-fail-child")

    made = acme.post(f"{SAMPLE}/workflows", sample)
    run = acme.run(sample["workflowId"])

    assert (made.status_code, made.json()) == (201, {"workflowId": sample["workflowId"]})
    assert run["variables"].get("parentResult") != "this-should-not-be-harvested"
    assert [e["nodeId"] for e in acme.log(run["runId"]) if e["type"] == "node.started"] == [
        "supervisor",
        "dispatch",
        "supervisor",
        "dispatch",
    ]


@pytest.mark.parametrize(
    ("capability", "sample"),
    [
        ("agents.dispatchMapping", supervised("conformance-noop")),
        (
            "subWorkflow.inputMapping",
            {
                "workflowId": fresh("sub"),
                "nodes": [
                    {
                        "nodeId": "sub",
                        "typeId": "core.subWorkflow",
                        "config": {
                            "childWorkflowId": "some-child",
                            "inputMapping": {"received": "current"},
                        },
                    }
                ],
            },
        ),
    ],
)
def test_a_disabled_capability_refuses_what_needs_it_in_that_tenant_only(
    acme: Wire, globex: Wire, capability: str, sample: JsonObject
) -> None:
    toggle = f"{SAMPLE}/test/capability-toggle"

    switched = acme.post(toggle, {"name": capability, "value": False})
    refused = acme.post(f"{SAMPLE}/workflows", sample)
    elsewhere = answered(globex, toggle, {"name": "__probe__", "value": True})
    restored = acme.post(toggle, {"reset": True})

    assert switched.json() == {"overlay": {capability: False}}
    assert (refused.status_code, refused.json()["error"]) == (400, "validation_error")
    assert refused.json()["details"]["requiredCapability"] == capability
    assert elsewhere == {"overlay": {}}
    assert restored.json() == {"overlay": {}}


def test_an_unknown_capability_cannot_be_switched(acme: Wire) -> None:
    response = acme.post(f"{SAMPLE}/test/capability-toggle", {"name": "webhooks", "value": False})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "name"


def surface(wire: Wire, tenant: str, op: str, **args: Json) -> JsonObject:
    body: JsonObject = {"tenantId": tenant, "surface": "webhooks", "op": op, "args": args}
    return answered(wire, f"{SAMPLE}/test/surface", body)


def listed(wire: Wire, tenant: str) -> list[str]:
    return [each["webhookId"] for each in surface(wire, tenant, "list")["webhooks"]]


def test_a_webhook_of_one_test_tenant_is_not_listed_in_another(acme: Wire, globex: Wire) -> None:
    made = surface(acme, "tenant-a", "register", url=RECEIVER, events=["run.completed"])
    name = made["webhookId"]

    assert listed(acme, "tenant-a") == [name]
    assert listed(acme, "tenant-b") == []
    assert listed(globex, "tenant-a") == []
    assert name not in acme.get("/v1/webhooks").text
    assert acme.request("DELETE", f"/v1/webhooks/{name}").status_code == 404

    surface(acme, "tenant-a", "unregister", webhookId=name)
    assert listed(acme, "tenant-a") == []


def test_no_key_belongs_to_a_test_tenant(acme: Wire, globex: Wire) -> None:
    own = globex.post("/v1/webhooks", {"url": RECEIVER, "events": ["*"]}).json()["webhookId"]

    assert own not in listed(acme, "globex")
    assert own not in listed(globex, "globex")


def test_a_webhook_missing_in_a_test_tenant_cannot_be_removed(acme: Wire) -> None:
    name = surface(acme, "tenant-a", "register", url=RECEIVER, events=["*"])["webhookId"]
    body = {"surface": "webhooks", "op": "unregister", "args": {"webhookId": name}}

    response = acme.post(f"{SAMPLE}/test/surface", {"tenantId": "tenant-b", **body})

    assert (response.status_code, response.json()["error"]) == (404, "subscription_not_found")
    assert listed(acme, "tenant-a") == [name]
    surface(acme, "tenant-a", "unregister", webhookId=name)


def test_a_missing_surface_is_not_found(acme: Wire) -> None:
    body = {"tenantId": "tenant-a", "surface": "kv", "op": "set", "args": {"key": "k"}}

    response = acme.post(f"{SAMPLE}/test/surface", body)

    assert (response.status_code, response.json()["error"]) == (404, "not_found")
    assert response.json()["message"] == 'This host has no surface "kv". It has: webhooks.'


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"op": "publish"}, "op"),
        ({"op": "register", "args": {"events": ["*"]}}, "args.url"),
        ({"op": "register", "args": {"url": "https://127.0.0.1/", "events": ["*"]}}, "url"),
        ({"op": "unregister", "args": {}}, "args.webhookId"),
        ({"op": "list", "args": {"limit": 5}}, "args.limit"),
    ],
)
def test_an_invalid_surface_call_is_refused_by_its_field(
    acme: Wire, call: JsonObject, field: str
) -> None:
    body = {"tenantId": "tenant-a", "surface": "webhooks", **call}

    response = acme.post(f"{SAMPLE}/test/surface", body)

    assert (response.status_code, response.json()["details"]["field"]) == (400, field)


def test_variables_of_a_live_run_can_be_set_by_its_own_tenant(acme: Wire, globex: Wire) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "?", "actions": ["accept"]})
    definition = workflow([gate], variables=[variable("x", defaultValue="one")])
    run_id = acme.create(acme.register(definition))
    acme.events_until(run_id, "approval.requested")
    path = f"{SAMPLE}/test/runs/{run_id}/variables"

    foreign = globex.post(path, {"variables": {"x": "theirs"}})
    changed = acme.post(path, {"variables": {"x": "two"}})
    acme.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    ended = acme.finished(run_id)
    late = acme.post(path, {"variables": {"x": "three"}})

    assert foreign.status_code == 404
    assert changed.json() == {"runId": run_id, "variables": {"x": "two"}}
    assert ended["variables"] == {"x": "two"}
    assert late.status_code == 409


@pytest.mark.parametrize("executors", [2, 5])
def test_one_of_several_executors_performs_an_effect(acme: Wire, executors: int) -> None:
    found = answered(acme, f"{SAMPLE}/test/idempotency/concurrent-claim", {"executors": executors})

    assert (found["attempted"], found["delivered"]) == (executors, 1)
    assert set(found["mintedIds"]) == {found["logicalInvocationId"]}


def test_a_principal_has_the_rights_of_its_key(acme: Wire, globex: Wire) -> None:
    run = acme.snapshot(acme.create("conformance-noop"))
    own = {"principal": run["owner"]["principal"], "action": "runs:cancel", "resource": "run"}
    path = f"{SAMPLE}/authorization/decide"

    assert answered(acme, path, own)["allowed"] is True
    assert answered(acme, path, own | {"action": "runs:fly"})["allowed"] is False
    assert answered(acme, path, own | {"principal": "unseeded"})["allowed"] is False
    assert answered(globex, path, own)["allowed"] is False


@pytest.mark.parametrize(
    ("scenario", "released", "event"),
    [
        ("unauthorized-grant", False, "authorization.decided"),
        ("grant", True, "approval.granted"),
        ("reject", False, "approval.rejected"),
        ("override", True, "approval.overridden"),
        ("quorum", True, "approval.granted"),
    ],
)
def test_a_governance_gate_is_decided_by_those_entitled(
    acme: Wire, scenario: str, released: bool, event: str
) -> None:
    body = {"scenario": scenario, "principal": "ada", "reason": "emergency"}

    found = answered(acme, f"{SAMPLE}/governance/approval-gate", body)

    assert (found["released"], found["event"]["type"]) == (released, event)
    if scenario == "override":
        assert found["event"]["payload"]["reason"] == "emergency"


@pytest.mark.parametrize(("confidence", "status"), [(0.95, "completed"), (0.8, "escalated")])
def test_the_threshold_of_an_installed_agent_applies_to_its_turn(
    acme: Wire, confidence: float, status: str
) -> None:
    body = {"task": {"text": "decide"}, "confidence": confidence}

    found = answered(acme, f"{SAMPLE}/agents/{CAUTIOUS}/dispatch", body)

    assert (found["status"], found["threshold"]) == (status, 0.9)
    assert [e["type"] for e in found["events"]][:1] == ["agent.reasoned"]
    assert {e["agentId"] for e in found["events"]} == {CAUTIOUS}


def handing_over(**task: JsonObject) -> JsonObject:
    return {
        "agentId": f"local.acme.{fresh('agent')}",
        "persona": "Worker",
        "modelClass": "general",
        "systemPrompt": "Work.",
        "handoff": {"taskSchema": {"type": "object", "required": ["text"], "properties": task}},
    }


def test_the_agent_s_task_schema_applies_to_a_turn(acme: Wire) -> None:
    manifest = handing_over(text={"type": "string"})
    assert acme.post("/v1/agents", manifest).status_code == 201
    path = f"{SAMPLE}/agents/{manifest['agentId']}/dispatch"

    taken, refused = (answered(acme, path, {"task": task}) for task in ({"text": "go"}, {}))

    assert (taken["status"], "error" in taken) == ("completed", False)
    assert (refused["status"], refused["events"]) == ("failed", [])
    assert refused["error"]["code"] == "handoff_task_schema_violation"


def test_another_tenant_s_agent_cannot_be_dispatched(acme: Wire, globex: Wire) -> None:
    agent = own_agent(acme)

    own = acme.post(f"{SAMPLE}/agents/{agent}/dispatch", {})
    response = globex.post(f"{SAMPLE}/agents/{agent}/dispatch", {})

    assert own.status_code == 200
    assert (response.status_code, response.json()["error"]) == (404, "not_found")


def own_agent(wire: Wire) -> str:
    agent_id = f"local.acme.{fresh('agent')}"
    manifest = {
        "agentId": agent_id,
        "persona": "Worker",
        "modelClass": "general",
        "systemPrompt": "Work.",
    }
    assert wire.post("/v1/agents", manifest).status_code == 201
    return agent_id


def packed(wire: Wire) -> set[str]:
    found = wire.document("/v1/packs")["packs"]
    assert all(pack.keys() == {"name", "version", "agents"} for pack in found)
    return {agent["agentId"] for pack in found for agent in pack["agents"]}


def exported(wire: Wire) -> set[str]:
    return {each["agentId"] for each in wire.document("/v1/packs/export")["manifests"]}


def test_packs_contain_the_manifests_of_the_tenant_s_agents(acme: Wire, globex: Wire) -> None:
    agent = own_agent(acme)

    assert {agent, CAUTIOUS} <= packed(acme) & exported(acme)
    assert agent not in packed(globex) | exported(globex)
    assert "core.conformance.exportable-agent" in exported(globex)


def test_the_new_fixtures_are_advertised(acme: Wire) -> None:
    found = set(acme.document("/.well-known/openwop")["fixtures"])

    assert {
        "conformance-replay-side-effect",
        "conformance-approval-refine",
        "conformance-approval-edit-accept",
        "conformance-agent-pack-install",
        "conformance-agent-pack-export",
    } <= found


def test_a_replay_of_a_run_cancelled_before_its_effect_fails_closed(acme: Wire) -> None:
    source = acme.create("conformance-replay-side-effect", {"delayMs": 30_000})
    acme.events_until(source, "node.started")
    assert acme.post(f"/v1/runs/{source}/cancel", {"reason": "enough"}).status_code == 200
    acme.finished(source)

    replay = forked(acme, source)

    log = acme.log(replay)
    [failed] = [e for e in log if e["type"] == "node.failed"]
    assert (failed["nodeId"], failed["payload"]["error"]["code"]) == (
        "effect",
        "replay_source_missing",
    )
    assert [e["payload"]["atSequence"] for e in log if e["type"] == "replay.diverged"] == [2]
    assert "log.appended" not in acme.types(replay)


def test_a_branch_of_that_run_performs_the_effect(acme: Wire) -> None:
    run = acme.run("conformance-replay-side-effect", {"delayMs": 1})

    branch = forked(acme, run["runId"], "branch", fromSeq=0)

    assert acme.types(branch).count("log.appended") == 1
    assert acme.snapshot(branch)["status"] == "completed"


@pytest.mark.parametrize(
    ("fixture", "answer", "incomplete"),
    [
        (
            "conformance-approval-refine",
            {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}},
            {"action": "refine"},
        ),
        (
            "conformance-approval-edit-accept",
            {"action": "edit-accept", "editedArtifactData": {"title": "better"}},
            {"action": "edit-accept"},
        ),
    ],
)
def test_an_approval_fixture_records_what_the_reviewer_changed(
    acme: Wire, fixture: str, answer: JsonObject, incomplete: JsonObject
) -> None:
    run_id = acme.create(fixture)
    acme.events_until(run_id, "approval.requested")
    path = f"/v1/runs/{run_id}/interrupts/gate"

    refused = acme.post(path, {"resumeValue": incomplete})
    taken = acme.post(path, {"resumeValue": answer})

    assert (refused.status_code, taken.status_code) == (400, 200)
    [received] = [
        e
        for e in acme.events_until(run_id, "approval.received")
        if e["type"] == "approval.received"
    ]
    assert {key: received["payload"][key] for key in answer} == answer


def test_an_entry_is_advertised_with_its_host_id(acme: Wire) -> None:
    family = acme.document("/.well-known/openwop")["multiAgent"]["executionModel"]
    ancestry = acme.document(f"/v1/runs/{acme.create('conformance-noop')}/ancestry")

    assert family["crossHostCausation"] == {
        "supported": False,
        "hostId": ancestry["hostId"],
        "ancestryEndpointSupported": True,
    }
