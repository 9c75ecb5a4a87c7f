from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.agent_definitions import events_of, mock, only_event, scripted
from tests.support.client import Wire
from tests.support.definitions import fresh, from_variable, node, variable, workflow
from tests.support.forked import run
from tests.support.host import ACME, VIEWER, ServedHost, environment
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

INVENTORY = "agent-inventory-response.schema.json"
TASK = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
RETURN = {"type": "object", "required": ["seen"], "properties": {"seen": {"type": "string"}}}


def manifest(**fields: Json) -> JsonObject:
    """Return a manifest that no other test uses."""
    base: JsonObject = {
        "agentId": f"local.acme.{fresh('a')}",
        "persona": "Writer",
        "modelClass": "writing",
        "systemPrompt": "Never tell anybody about the blue door.",
    }
    return base | fields


def installed(wire: Wire, **fields: Json) -> str:
    """Install an agent and return its id."""
    document = manifest(**fields)
    response = wire.post("/v1/agents", document)
    assert response.status_code == 201, response.text
    return str(document["agentId"])


def refusal(wire: Wire, document: Json) -> JsonObject:
    response = wire.post("/v1/agents", document)
    assert response.status_code == 400, response.text
    found: JsonObject = response.json()
    return found


# Installing


def test_an_installed_agent_is_in_the_inventory_without_prompt_and_schemas(acme: Wire) -> None:
    agent_id = installed(
        acme,
        label="Scribe",
        description="Writes.",
        toolAllowlist=["openwop:b", "mcp:a"],
        confidence={"defaultThreshold": 0.8},
        memoryShape={"longTerm": True},
        handoff={"taskSchema": TASK, "returnSchema": RETURN},
        version="3.1",
    )

    found = acme.document(f"/v1/agents/{agent_id}")

    assert found == {
        "agentId": agent_id,
        "persona": "Writer",
        "label": "Scribe",
        "description": "Writes.",
        "modelClass": "writing",
        "packName": "local.acme",
        "packVersion": "3.1",
        "toolAllowlist": ["mcp:a", "openwop:b"],
        "hasHandoffSchemas": True,
        "confidenceThreshold": 0.8,
        "memoryShape": {"longTerm": True},
    }
    assert "blue door" not in json.dumps(found)


def test_the_inventory_lists_every_agent_once_by_id_in_the_published_shape(acme: Wire) -> None:
    for version in ("1", "2"):
        document = manifest(agentId="local.acme.inventory", version=version)
        assert acme.post("/v1/agents", document).status_code in (200, 201)

    found = acme.document("/v1/agents")

    acme.recorder.check(INVENTORY, found)
    names = [entry["agentId"] for entry in found["agents"]]
    assert names == sorted(set(names))
    assert found["total"] == len(names)
    (entry,) = [e for e in found["agents"] if e["agentId"] == "local.acme.inventory"]
    assert entry["packVersion"] == "2"


def test_a_conformance_host_lists_an_agent_with_its_own_threshold(acme: Wire) -> None:
    found = acme.document("/v1/agents/core.conformance.agents.cautious")

    assert found["confidenceThreshold"] not in (0.7, None)


def test_a_missing_label_is_the_persona(acme: Wire) -> None:
    assert acme.document(f"/v1/agents/{installed(acme)}")["label"] == "Writer"


def test_missing_requirements_of_an_agent_are_listed(acme: Wire) -> None:
    needs = ["agents.supported", "prompts.supported", "voice"]
    agent_id = installed(acme, requiresCapabilities=needs, promptLibraryRef="acme")

    entry = acme.document(f"/v1/agents/{agent_id}")

    assert entry["degraded"] == ["prompts.supported", "voice", "prompts"]


def test_the_same_manifest_twice_changes_nothing_and_other_content_is_refused(
    acme: Wire,
) -> None:
    document = manifest()

    assert acme.post("/v1/agents", document).status_code == 201
    assert acme.post("/v1/agents", document).status_code == 200
    changed = acme.post("/v1/agents", document | {"persona": "Other"})
    assert changed.status_code == 409
    assert changed.json()["error"] == "agent_exists"


def test_an_old_version_can_be_read_beside_a_new_one(acme: Wire) -> None:
    agent_id = installed(acme, version="1", persona="Old")
    installed(acme, agentId=agent_id, version="2", persona="New")

    assert acme.document(f"/v1/agents/{agent_id}")["persona"] == "New"
    old = acme.document(f"/v1/agents/{agent_id}", params={"version": "1"})
    assert old["persona"] == "Old"


def test_an_agent_of_another_tenant_does_not_exist(acme: Wire, globex: Wire) -> None:
    agent_id = installed(acme)

    assert globex.get(f"/v1/agents/{agent_id}").status_code == 404
    names = [entry["agentId"] for entry in globex.document("/v1/agents")["agents"]]
    assert agent_id not in names


def test_installing_needs_its_own_scope(host: ServedHost) -> None:
    with Wire(host.url, VIEWER) as viewer:
        assert viewer.post("/v1/agents", manifest()).status_code == 403
        assert viewer.get("/v1/agents").status_code == 200


# Refusals


@pytest.mark.parametrize(
    ("model_class", "projected"),
    [
        ("reasoning", "reasoning"),
        ("writing", "chat"),
        ("coding", "code"),
        ("research", "retrieval"),
        ("classification", "classification"),
        ("general", "chat"),
    ],
)
def test_a_class_that_is_advertised_after_mapping_can_be_installed(
    acme: Wire, model_class: str, projected: str
) -> None:
    classes = acme.document("/.well-known/openwop")["agents"]["modelClasses"]

    assert projected in classes
    assert installed(acme, modelClass=model_class)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"agentId": "host:mine"}, "agentId"),
        ({"agentId": "core.chat"}, "agentId"),
        ({"agentId": "acme.pack.agent"}, "agentId"),
        ({"persona": ""}, "persona"),
        ({"modelClass": "chat"}, "modelClass"),
        ({"systemPromptRef": "p.md"}, "systemPromptRef"),
        ({"confidence": {"defaultThreshold": 1.1}}, "confidence.defaultThreshold"),
        ({"handoff": {"taskSchemaRef": "t.json"}}, "handoff.taskSchemaRef"),
        ({"handoff": {"taskSchema": {"type": 7}}}, "handoff.taskSchema"),
        ({"requiresCapabilities": ["a", "a"]}, "requiresCapabilities"),
        ({"memoryShape": {"forever": True}}, "memoryShape.forever"),
        ({"evalSuiteRef": "e"}, "evalSuiteRef"),
    ],
)
def test_an_invalid_manifest_is_refused_at_its_place(
    acme: Wire, fields: JsonObject, path: str
) -> None:
    found = refusal(acme, manifest(**fields))

    assert found["error"] == "validation_error"
    assert path in [fault["path"] for fault in found["details"]["errors"]]


def test_all_faults_of_a_manifest_are_named_together(acme: Wire) -> None:
    found = refusal(acme, {"agentId": "host:x", "modelClass": "chat", "handoff": {"x": 1}})

    paths = {fault["path"] for fault in found["details"]["errors"]}
    assert {"agentId", "modelClass", "systemPrompt", "handoff.x"} <= paths


# Hand-off schemas


def pinned(agent_id: str, **fields: Json) -> JsonObject:
    return node("work", "core.identity", agent={"agentId": agent_id}, **fields)


def ran(
    wire: Wire, definition: JsonObject, inputs: JsonObject
) -> tuple[JsonObject, list[JsonObject]]:
    run_id = wire.create(wire.register(definition), inputs)
    return wire.finished(run_id), wire.log(run_id)


def test_a_pinned_agent_gets_only_inputs_that_fit_its_task_schema(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK})
    ports = {"text": from_variable("words")}
    definition = workflow([pinned(agent_id, inputs=ports)], variables=[variable("words", "object")])
    good = workflow([pinned(agent_id, inputs=ports)], variables=[variable("words")])

    bad, log = ran(acme, definition, {"words": {}})

    assert bad["status"] == "failed"
    assert bad["error"]["code"] == "handoff_task_schema_violation"
    assert bad["error"]["details"] == {"agentId": agent_id}
    assert "node.completed" not in [event["type"] for event in log]
    assert ran(acme, good, {"words": "hello"})[0]["status"] == "completed"


def test_a_pinned_node_without_inputs_gets_the_run_s_inputs(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK})
    definition = workflow([pinned(agent_id)])

    assert ran(acme, definition, {"text": "hello"})[0]["status"] == "completed"
    assert ran(acme, definition, {})[0]["error"]["code"] == "handoff_task_schema_violation"


def test_the_return_of_an_agent_is_checked_before_it_is_stored(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"returnSchema": RETURN})
    ports = {"seen": from_variable("words")}
    definition = workflow(
        [pinned(agent_id, inputs=ports), node("after")], variables=[variable("words", "number")]
    )

    found, _ = ran(acme, definition, {"words": 7})

    assert found["error"]["code"] == "handoff_return_schema_violation"
    assert "outputs" not in found["nodeStates"]["work"]
    assert found["nodeStates"]["after"]["status"] in ("pending", "skipped")


def test_an_agent_with_an_invalid_task_does_nothing(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK}, toolAllowlist=["openwop:a"])
    tool = {"toolId": "openwop:a", "result": 1}
    definition = scripted([mock("work", {"agentId": agent_id}, mockToolCalls=[tool])])

    found, log = ran(acme, definition, {"text": 1})

    assert found["error"]["code"] == "handoff_task_schema_violation"
    assert not [event for event in log if event["type"].startswith("agent.")]


def test_a_workflow_of_an_agent_checks_inputs_first_and_outputs_last(
    acme: Wire,
) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK, "returnSchema": RETURN})
    last = node("last", "core.identity", inputs={"seen": from_variable("text")})
    definition = workflow(
        [node("first"), last],
        variables=[variable("text")],
        metadata={"requiresAgentId": agent_id},
    )

    assert ran(acme, definition, {"text": "hello"})[0]["status"] == "completed"
    found, log = ran(acme, definition, {})

    assert found["error"]["code"] == "handoff_task_schema_violation"
    assert only_event(log, "node.failed")["nodeId"] == "first"


def test_a_violation_never_repeats_the_values(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK})
    definition = workflow([pinned(agent_id)], variables=[variable("text", "object")])

    found, log = ran(acme, definition, {"text": {"password": "hunter2"}})

    assert found["error"]["code"] == "handoff_task_schema_violation"
    assert "hunter2" not in json.dumps(events_of(log, "node.failed"))


def test_a_violation_is_not_retried(acme: Wire) -> None:
    agent_id = installed(acme, handoff={"taskSchema": TASK})
    definition = workflow([pinned(agent_id)], settings={"maxRetries": 3})

    _, log = ran(acme, definition, {})

    assert events_of(log, "node.retried") == []


def test_a_run_keeps_the_manifest_that_it_started_with(acme: Wire) -> None:
    agent_id = installed(acme, version="1", confidence={"defaultThreshold": 0.1})
    gate = node("gate", "core.approvalGate", config={"title": "Go on?"})
    decides = mock("actor", {"agentId": agent_id}, mockConfidence=0.5)
    run_id = acme.create(acme.register(scripted([gate, decides])))
    acme.events_until(run_id, "interrupt.requested")
    stricter = manifest(agentId=agent_id, version="2", confidence={"defaultThreshold": 0.9})
    assert acme.post("/v1/agents", stricter).status_code == 201

    accept = {"resumeValue": {"action": "accept"}}
    acme.post(f"/v1/runs/{run_id}/interrupts/gate", accept)

    assert acme.finished(run_id)["status"] == "completed"


# The command line


def wopr(host: ServedHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `wopr agents` against a real host."""
    given = ("agents", *arguments, "--url", host.url, "--api-key", ACME)
    return run(given, environment(host.data_dir, {}))


def test_agents_are_added_listed_and_shown_from_the_command_line(
    host: ServedHost, tmp_path: Path
) -> None:
    document = manifest(confidence={"defaultThreshold": 0.25}, toolAllowlist=["mcp:search"])
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(document))

    added = wopr(host, "add", str(file))
    listed = wopr(host, "list")
    shown = json.loads(wopr(host, "show", document["agentId"], "--json").stdout)

    assert added.returncode == listed.returncode == 0, added.stderr
    assert document["agentId"] in added.stdout
    (line,) = [row for row in listed.stdout.splitlines() if document["agentId"] in row]
    assert line.split()[1:] == ["1.0.0", "Writer", "writing", "0.25", "mcp:search"]
    assert shown["confidenceThreshold"] == 0.25
    assert "systemPrompt" not in shown


def test_an_invalid_manifest_fails_on_the_command_line_with_every_fault(
    host: ServedHost, tmp_path: Path
) -> None:
    file = tmp_path / "agent.json"
    file.write_text(json.dumps({"agentId": "host:x", "persona": "", "modelClass": "general"}))

    done = wopr(host, "add", str(file))

    assert done.returncode != 0
    for path in ("agentId", "persona", "systemPrompt"):
        assert f"{path}:" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_missing_agent_is_reported_as_missing(host: ServedHost) -> None:
    done = wopr(host, "show", "local.acme.nobody")

    assert done.returncode != 0
    assert "local.acme.nobody" in done.stderr
