from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, fresh, node, workflow
from tests.support.host import ACME, GLOBEX, ServedHost
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

# They return no tenant's data.
OPEN = {operation.name for operation in OPERATIONS if operation.scope is None} | {
    "listNodeTypes",
    "validateWorkflow",
    "probeToolHooks",
}
# Quotas of all tenants and figures of the whole host, for its operator; `test_quotas` and
# `test_observability` test who may use them.
HOST_WIDE = ["listQuotas", "setQuota", "resetQuota", "metrics"]
BY_ID = [o for o in OPERATIONS if "{" in o.path and o.name not in {*OPEN, *HOST_WIDE}]
# Operations that return lists, and their required queries.
LISTS: dict[str, dict[str, str]] = {
    "listRuns": {"limit": "200"},
    "listWorkflows": {"limit": "200"},
    "listAgents": {"limit": "200"},
    "listInterrupts": {"limit": "200"},
    "listWebhooks": {},
    "listAudit": {"limit": "200"},
    "verifyAudit": {"fromSeq": "0", "toSeq": "1000"},
    "listQueues": {"limit": "200"},
    "feedbackSummary": {"by": "agent"},
    "exportRuns": {},
    "listProcesses": {},
    "getUsage": {},
    "listPacks": {},
    "exportPacks": {},
}
RUBRIC: Json = [{"kind": "rating", "question": "How good is it?"}]
# Operations that name a resource in their body: how to name it there.
BY_BODY: dict[str, Json] = {
    "createRun": {"workflowId": "{workflow_id}"},
    "bulkCancelRuns": {"runIds": ["{run_id}"]},
    "createQueue": {"name": "Mine", "rubric": RUBRIC, "runIds": ["{run_id}"]},
    "createJudge": {
        "workflowId": "{workflow_id}",
        "agentId": "{agent_id}",
        "runIds": ["{run_id}"],
    },
}
# Operations on the fleet as a whole; `test_fleet_views` tests their isolation.
FLEET = [
    "ingestTransitions",
    "ingestAgentTransitions",
    "exportTraces",
    "aggregateAgents",
    "auditFlakiness",
    "listFleetRuns",
    "exportTransitions",
    "getTenantSelf",
]
# Test seams; `test_conformance_seams` tests them with a second tenant.
SEAMS = [
    "registerSampleWorkflow",
    "toggleCapability",
    "callSurface",
    "claimConcurrently",
    "decideAuthorization",
    "tryGovernanceGate",
]
# Operations that create a resource whose name another tenant may use.
MAKERS = ["registerWorkflow", "registerAgent", "registerWebhook"]
SIGNAL: JsonObject = {"kind": "label", "label": "Secret label"}
WEBHOOK: JsonObject = {"url": "https://hooks.example.com/secret", "events": ["*"]}


def _agent(persona: str) -> JsonObject:
    return {
        "agentId": f"local.acme.{fresh('agent')}",
        "persona": persona,
        "modelClass": "general",
        "systemPrompt": "Keep quiet.",
    }


class TenantData:
    """Resources of acme, and unused ids of the same length."""

    def __init__(self, wire: Wire) -> None:
        self.tag = fresh("secret-tag")
        self.workflow = workflow([delay("wait", 3_600_000)], id=fresh("acme"), name="Secret plan")
        self.agent = _agent("Secret agent")
        wire.register(self.workflow)
        assert wire.post("/v1/agents", self.agent).status_code == 201
        self.run_id = wire.create(self.workflow["id"], tags=[self.tag])
        self.ended = wire.run("conformance-noop", tags=[self.tag])["runId"]
        self.webhook_id = _made(wire, "/v1/webhooks", WEBHOOK)["webhookId"]
        queue = {"name": "Secret queue", "rubric": RUBRIC, "runIds": [self.ended]}
        self.queue_id = _made(wire, "/v1/queues", queue)["queueId"]
        judge = {
            "workflowId": self.workflow["id"],
            "agentId": self.agent["agentId"],
            "runIds": [self.run_id],
        }
        self.judge_id = _made(wire, "/v1/judges", judge)["judgeId"]
        _made(wire, f"/v1/runs/{self.ended}/annotations", {"signal": SIGNAL})
        self.real = {
            "run_id": self.run_id,
            "workflow_id": self.workflow["id"],
            "artifact_id": "wait-0-0",
            "agent_id": self.agent["agentId"],
            "node_id": "wait",
            "webhook_id": self.webhook_id,
            "queue_id": self.queue_id,
            "judge_id": self.judge_id,
        }
        self.missing = {
            name: re.sub("[0-9a-f]{8}$", "ffffffff", v) for name, v in self.real.items()
        }

    def marks(self) -> list[str]:
        """Return the words that no response to another tenant may contain."""
        return [
            self.run_id,
            self.ended,
            self.tag,
            self.workflow["id"],
            str(self.agent["agentId"]),
            self.webhook_id,
            self.queue_id,
            self.judge_id,
            "Secret",
            "hooks.example.com/secret",
        ]


@pytest.fixture(scope="module")
def acme_data(host: ServedHost) -> Iterator[TenantData]:
    with Wire(host.url, ACME) as wire:
        belongings = TenantData(wire)
        yield belongings
        wire.post(f"/v1/runs/{belongings.run_id}/cancel")
        wire.request("DELETE", f"/v1/webhooks/{belongings.webhook_id}")


def _made(wire: Wire, path: str, body: JsonObject) -> JsonObject:
    response = wire.post(path, body)
    assert response.is_success, response.text
    made: JsonObject = response.json()
    return made


def _plain(response: httpx.Response, ids: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    """Return a response without the caller's own ids and without the time."""
    text = response.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, text, headers


def _filled(value: Json, ids: dict[str, str]) -> Json:
    if isinstance(value, dict):
        return {name: _filled(member, ids) for name, member in value.items()}
    if isinstance(value, list):
        return [_filled(member, ids) for member in value]
    return value.format(**ids) if isinstance(value, str) else value


def _call(wire: Wire, operation: Operation, ids: dict[str, str]) -> httpx.Response:
    body = BY_BODY.get(operation.name, {} if operation.body is not None else None)
    path = operation.path.replace(":path}", "}").format(**ids)
    return wire.request(operation.method, path, json=_filled(body, ids))


def test_every_operation_is_checked_for_tenant_isolation() -> None:
    covered = [
        *OPEN,
        *(o.name for o in BY_ID),
        *LISTS,
        *BY_BODY,
        *MAKERS,
        *FLEET,
        *SEAMS,
        *HOST_WIDE,
    ]

    assert sorted(covered) == sorted(operation.name for operation in OPERATIONS)


@pytest.mark.parametrize(
    "operation", [*BY_ID, *(o for o in OPERATIONS if o.name in BY_BODY)], ids=lambda each: each.name
)
def test_another_tenant_s_resource_gives_the_same_bytes_as_a_missing_one(
    globex: Wire, acme_data: TenantData, operation: Operation
) -> None:
    foreign = _plain(_call(globex, operation, acme_data.real), acme_data.real)
    missing = _plain(_call(globex, operation, acme_data.missing), acme_data.missing)

    assert foreign == missing
    assert foreign[0] == (200 if operation.name == "bulkCancelRuns" else 404)


@pytest.mark.parametrize("operation", BY_ID, ids=lambda each: each.name)
def test_an_ended_resource_of_another_tenant_gives_the_same_response(
    globex: Wire, acme_data: TenantData, operation: Operation
) -> None:
    ended = acme_data.real | {"run_id": acme_data.ended}

    foreign = _plain(_call(globex, operation, ended), ended)
    missing = _plain(_call(globex, operation, acme_data.missing), acme_data.missing)

    assert foreign == missing


def test_no_resource_of_the_other_tenant_was_changed(
    acme: Wire, globex: Wire, acme_data: TenantData
) -> None:
    for operation in BY_ID:
        _call(globex, operation, acme_data.real)

    assert acme.get(f"/v1/queues/{acme_data.queue_id}").json()["progress"]["locked"] == 0
    assert acme_data.webhook_id in acme.get("/v1/webhooks", params={"limit": 200}).text
    assert acme.snapshot(acme_data.run_id)["status"] == "running"
    assert acme.types(acme_data.run_id) == ["run.started", "node.started"]


@pytest.mark.parametrize("name", LISTS)
def test_no_list_shows_data_of_another_tenant(
    globex: Wire, acme_data: TenantData, name: str
) -> None:
    operation = next(each for each in OPERATIONS if each.name == name)
    globex.run("conformance-noop")
    seen = ""
    cursor: dict[str, str] = {}
    while True:
        response = globex.get(operation.path, params={**LISTS[name], **cursor})
        assert response.status_code == 200, response.text
        seen += response.text
        is_page = response.headers["content-type"] == "application/json"
        if not is_page or "nextCursor" not in response.json():
            break
        cursor = {"cursor": response.json()["nextCursor"]}

    assert not [mark for mark in acme_data.marks() if mark in seen]


@pytest.mark.parametrize("name", ["tag", "workflowId", "parentRunId"])
def test_no_filter_finds_data_of_another_tenant(
    globex: Wire, acme_data: TenantData, name: str
) -> None:
    wanted = {
        "tag": acme_data.tag,
        "workflowId": acme_data.workflow["id"],
        "parentRunId": acme_data.run_id,
    }[name]

    assert globex.document("/v1/runs", params={name: wanted}) == {"items": []}


def test_a_cursor_of_another_tenant_lists_none_of_its_data(
    acme: Wire, globex: Wire, acme_data: TenantData
) -> None:
    cursor = acme.document("/v1/runs", params={"limit": 1})["nextCursor"]

    page = globex.document("/v1/runs", params={"cursor": cursor, "limit": 200})

    assert not [mark for mark in acme_data.marks() if mark in str(page)]


def test_the_name_of_another_tenant_s_workflow_is_available(acme: Wire, globex: Wire) -> None:
    theirs = workflow([node("theirs")])
    acme.register(theirs)
    own = theirs | {"nodes": [node("mine")]}

    response = globex.post("/v1/workflows", own)

    assert response.status_code == 201
    assert acme.document(f"/v1/workflows/{own['id']}") == theirs
    assert globex.document(f"/v1/workflows/{own['id']}") == own


def test_the_name_of_another_tenant_s_agent_is_available(acme: Wire, globex: Wire) -> None:
    theirs = _agent("Theirs")
    acme.post("/v1/agents", theirs)

    response = globex.post("/v1/agents", theirs | {"persona": "Mine"})

    path = f"/v1/agents/{theirs['agentId']}"
    assert response.status_code == 201
    assert acme.document(path)["persona"] == "Theirs"
    assert globex.document(path)["persona"] == "Mine"


def test_a_workflow_cannot_call_another_tenant_s(acme: Wire, globex: Wire) -> None:
    theirs, missing = acme.register(workflow([node("a")])), fresh()
    errors: list[JsonObject] = []
    for called in (theirs, missing):
        definition = workflow([node("call", "core.subWorkflow", config={"workflowId": called})])
        response = globex.post("/v1/workflows", definition)
        errors.append(json.loads(response.text.replace(called, "")))

    assert errors[0] == errors[1]
    assert errors[0]["error"] == "unknown_child_workflow"


def test_a_child_belongs_to_the_tenant_of_its_parent(acme: Wire, globex: Wire) -> None:
    definition = workflow(
        [
            node("start"),
            node("call", "core.subWorkflow", config={"workflowId": "conformance-noop"}),
        ],
        edges=[edge("start", "call")],
    )
    found = acme.run(acme.register(definition))

    child = found["childRuns"][0]["runId"]

    assert acme.snapshot(child)["owner"]["tenant"] == "acme"
    assert globex.get(f"/v1/runs/{child}").status_code == 404


@pytest.mark.parametrize("header", ["X-Tenant-Id", "X-Tenant", "tenantId"])
def test_no_header_or_query_changes_the_tenant(
    globex: Wire, acme_data: TenantData, header: str
) -> None:
    path = f"/v1/runs/{acme_data.run_id}"

    assert globex.get(path, headers={header: "acme"}).status_code == 404
    assert globex.get(path, params={header: "acme"}).status_code == 404


def test_two_tenants_do_not_see_each_other_s_keys(host: ServedHost) -> None:
    with Wire(host.url, GLOBEX) as wire:
        found = wire.run("conformance-noop")

    assert found["owner"]["tenant"] == "globex"
    assert ACME not in str(found)
