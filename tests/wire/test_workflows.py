from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.definitions import delay, edge, fresh, from_variable, node, variable, workflow
from tests.support.host import ACME, ServedHost, served
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.registry import NodeRegistry
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import CapabilityRequired
from wopr.runs.definitions.checks import check_definition

pytestmark = pytest.mark.both_stores

GATED = {
    "core.conversationGate": "conversationPrimitive",
    "core.orchestrator.supervisor": "agents.orchestrator",
    "core.dispatch": "agents.dispatch",
    "core.conformance.mock-agent": "conformance.mockAgent",
}


def _faults(wire: Wire, definition: Json) -> dict[str, str]:
    """Return the faults of a definition by path."""
    response = wire.post("/v1/workflows", definition)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "validation_error"
    return {fault["path"]: fault["message"] for fault in response.json()["details"]["errors"]}


def test_every_definition_is_registered_and_returned_unchanged(acme: Wire) -> None:
    definition = workflow(
        [node("a", notes="as it came")],
        description="Ünïcode ☃",
        metadata={"x-editor": {"zoom": 1.5}},
        configurableSchema={"type": "object"},
    )

    response = acme.post("/v1/workflows", definition)

    assert response.status_code == 201
    assert response.json() == definition
    assert acme.document(f"/v1/workflows/{definition['id']}") == definition


def test_the_same_definition_again_changes_nothing(acme: Wire) -> None:
    definition = workflow([node("a"), node("b")])
    acme.post("/v1/workflows", definition)

    again = acme.post("/v1/workflows", dict(reversed(definition.items())))

    versions = acme.document(f"/v1/workflows/{definition['id']}/versions")["items"]
    assert again.status_code == 200
    assert again.json() == definition
    assert len(versions) == 1


def test_other_content_under_the_same_version_is_a_conflict(acme: Wire) -> None:
    definition = workflow([node("a")])
    acme.register(definition)

    response = acme.post("/v1/workflows", definition | {"name": "Another"})

    assert response.status_code == 409
    assert response.json()["error"] == "workflow_exists"
    assert acme.document(f"/v1/workflows/{definition['id']}") == definition


def test_a_new_version_is_the_default_while_old_runs_keep_theirs(acme: Wire) -> None:
    first = workflow([delay("old", 400)])
    acme.register(first)
    old = acme.create(first["id"])

    second = first | {"version": "2.0", "nodes": [node("new")]}
    acme.register(second)
    new = acme.create(first["id"])

    assert acme.finished(new)["workflowVersion"] == "2.0"
    assert list(acme.snapshot(new)["nodeStates"]) == ["new"]
    assert acme.finished(old)["workflowVersion"] == "1.0"
    assert list(acme.snapshot(old)["nodeStates"]) == ["old"]


def test_every_version_stays_readable(acme: Wire) -> None:
    first = workflow([node("a")], version="1.0")
    second = first | {"version": "1.1", "name": "Second"}
    acme.register(first)
    acme.register(second)
    path = f"/v1/workflows/{first['id']}"

    versions = acme.document(f"{path}/versions")["items"]

    assert [item["version"] for item in versions] == ["1.1", "1.0"]
    assert acme.document(path) == second
    assert acme.document(path, params={"version": "1.0"}) == first
    assert acme.get(path, params={"version": "9"}).status_code == 404


def test_an_old_run_keeps_its_version_across_a_restart(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host()
    wire = connect(ACME, host)
    first = workflow([delay("wait", 1500), node("old")])
    wire.register(first)
    run_id = wire.create(first["id"])
    wire.register(first | {"version": "2.0", "nodes": [node("new")], "edges": []})

    host.restart()
    wire = connect(ACME, host)

    found = wire.finished(run_id)
    assert (found["workflowVersion"], found["status"]) == ("1.0", "completed")
    assert found["nodeStates"]["old"]["status"] == "completed"


def test_the_list_shows_own_and_shared_workflows_in_pages(acme: Wire) -> None:
    own = acme.register(workflow([node("a")], id=fresh("zz-own"), description="Mine"))
    found: list[JsonObject] = []
    page = acme.document("/v1/workflows", params={"limit": 7})
    while "nextCursor" in page:
        found += page["items"]
        page = acme.document("/v1/workflows", params={"limit": 7, "cursor": page["nextCursor"]})
    found += page["items"]

    ids = [item["id"] for item in found]
    by_id = {item["id"]: item for item in found}
    assert ids == sorted(set(ids))
    assert {"hello", "conformance-noop", own} <= set(ids)
    assert by_id["hello"]["isShared"] is True
    assert by_id[own]["isShared"] is False
    assert by_id[own]["description"] == "Mine"


@pytest.mark.parametrize("cursor", ["", "UPPER", "a b", "../x", "a" * 200, "\u0000"])
def test_a_cursor_that_is_not_a_workflow_id_is_refused(acme: Wire, cursor: str) -> None:
    response = acme.get("/v1/workflows", params={"cursor": cursor})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "cursor"


def test_an_own_workflow_takes_precedence_over_a_shared_one_of_the_same_name(
    acme: Wire, globex: Wire
) -> None:
    shared = acme.document("/v1/workflows/conformance-version-fold")
    own = workflow([node("mine")], id="conformance-version-fold", version="7.0")

    globex.register(own)

    assert globex.document("/v1/workflows/conformance-version-fold") == own
    assert globex.run("conformance-version-fold")["workflowVersion"] == "7.0"
    assert acme.document("/v1/workflows/conformance-version-fold") == shared
    assert acme.run("conformance-version-fold")["workflowVersion"] == shared["version"]


def test_all_schema_faults_are_named_together(acme: Wire) -> None:
    broken = workflow([node("a") | {"typeId": "Not A Type"}, node("b") | {"surprise": 1}])
    del broken["triggers"]
    broken["id"] = "Bad Id"
    broken["variables"] = [{"name": "v", "type": "date"}]

    faults = _faults(acme, broken)

    assert {"", "id", "nodes.0.typeId", "nodes.1.surprise", "variables.0.type"} <= faults.keys()
    assert "triggers" in faults[""]
    assert "surprise" in faults["nodes.1.surprise"]


def test_all_semantic_faults_are_named_together(acme: Wire) -> None:
    definition = workflow(
        [
            node("a"),
            node("a", "core.nothing"),
            node("set", "core.setVariable", config={"nom": "x"}),
            node("reads", inputs={"x": {"type": "connection", "nodeId": "gone", "outputKey": "y"}}),
            node("asks", inputs={"x": {"type": "expression", "expression": "1 +"}}),
        ],
        edges=[
            edge("a", "nowhere"),
            edge("a", "set", condition={"type": "expression", "expression": ")("}),
        ],
        variables=[variable("v"), variable("v")],
        configurableSchema={"type": "colour"},
        channels={"c": {"reducer": "append", "schema": {"type": 7}}},
    )

    faults = _faults(acme, definition)

    assert faults.keys() >= {
        "nodes.1",
        "nodes.1.typeId",
        "nodes.2.config",
        "nodes.3.inputs.x",
        "nodes.4.inputs.x",
        "edges.0.targetNodeId",
        "edges.1.condition",
        "variables.1",
        "configurableSchema",
        "channels.c.schema",
    }
    assert "core.nothing" in faults["nodes.1.typeId"]
    assert "nowhere" in faults["edges.0.targetNodeId"]


def test_a_cycle_is_named_by_its_nodes(acme: Wire) -> None:
    definition = workflow(
        [node("a"), node("b"), node("c")], edges=[edge("a", "b"), edge("b", "c"), edge("c", "b")]
    )

    faults = _faults(acme, definition)

    assert "b → c → b" in faults["edges"] or "c → b → c" in faults["edges"]


@pytest.mark.parametrize("type_id", GATED)
def test_a_gated_type_that_a_host_lacks_is_refused_with_its_capability(
    type_id: str,
) -> None:
    bare = NodeRegistry(each for each in builtin_registry() if each.type_id not in GATED)

    with pytest.raises(CapabilityRequired) as refused:
        check_definition(workflow([node("a"), node("gated", type_id)]), bare)

    assert refused.value.status == 400
    assert refused.value.code == "capability_required"
    assert refused.value.details == {
        "requiredCapability": GATED[type_id],
        "offendingTypeId": type_id,
        "nodeId": "gated",
    }


def test_a_conformance_type_is_for_conformance_workflows_only(acme: Wire) -> None:
    nodes = [node("n", "conformance.requiresMissing")]

    faults = _faults(acme, workflow(nodes))

    assert "conformance" in faults["nodes.0.typeId"]


def test_a_check_reports_faults_without_registering(acme: Wire) -> None:
    good = workflow([node("a")])
    bad = workflow([node("a", "core.nothing"), node("b", "core.dispatch")])

    assert acme.post("/v1/workflows:validate", good).json() == {
        "valid": True,
        "errors": [],
        "warnings": [],
    }
    verdict = acme.post("/v1/workflows:validate", bad).json()
    assert verdict["valid"] is False
    assert verdict["errors"][0]["path"]
    assert acme.get(f"/v1/workflows/{good['id']}").status_code == 404


@pytest.mark.parametrize("path", ["/v1/workflows", "/v1/workflows:validate"])
@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml", "text/plain", "text/html"])
def test_the_api_accepts_definitions_as_json_only(acme: Wire, path: str, media_type: str) -> None:
    response = acme.post(path, content="id: hello\n", headers={"Content-Type": media_type})

    assert response.status_code == 415
    assert response.json()["error"] == "unsupported_media_type"
    assert response.json()["details"]["field"] == "Content-Type"


@pytest.mark.parametrize("document", [[], "x", 7, None, {}, {"id": "x"}])
def test_a_body_that_is_not_a_definition_is_refused_with_faults(acme: Wire, document: Json) -> None:
    response = acme.post(
        "/v1/workflows", content=json.dumps(document), headers={"Content-Type": "application/json"}
    )

    assert response.status_code == 400
    assert response.json()["details"]["errors"]


def test_an_unknown_workflow_is_not_found(acme: Wire) -> None:
    for response in (
        acme.get("/v1/workflows/nowhere"),
        acme.get("/v1/workflows/nowhere/versions"),
        acme.post("/v1/runs", {"workflowId": "nowhere"}),
    ):
        assert response.status_code == 404
        assert response.json()["error"] == "not_found"


def test_node_types_are_listed_with_the_schemas_of_their_config(acme: Wire) -> None:
    items = acme.document("/v1/node-types")["items"]

    by_id = {item["typeId"]: item for item in items}
    assert [item["typeId"] for item in items] == sorted(by_id)
    assert {"core.noop", "core.delay", "core.subWorkflow", "wopr.http.request"} <= by_id.keys()
    assert all(item["description"] for item in items)
    assert "name" in str(by_id["core.setVariable"]["config"])


def test_values_are_passed_along_ports_edges_and_expressions(acme: Wire) -> None:
    definition = workflow(
        [
            node("in", "core.identity", inputs={"n": from_variable("n")}),
            node(
                "double",
                "core.identity",
                inputs={"twice": {"type": "expression", "expression": "nodes['in'].n * 2"}},
            ),
            node("big", "core.identity", inputs={"is": {"type": "static", "value": "big"}}),
            node("small", "core.identity", inputs={"is": {"type": "static", "value": "small"}}),
        ],
        edges=[
            edge("in", "double"),
            edge(
                "double",
                "big",
                condition={"type": "expression", "expression": "nodes.double.twice > 10"},
            ),
            edge(
                "double",
                "small",
                condition={"type": "expression", "expression": "nodes.double.twice <= 10"},
            ),
        ],
        variables=[variable("n", "number", required=True)],
    )
    workflow_id = acme.register(definition)

    outcomes = [acme.run(workflow_id, {"n": n})["outputs"] for n in (2, 7)]

    assert outcomes == [{"small": {"is": "small"}}, {"big": {"is": "big"}}]


# Workflows that start others


def calling(*children: str, **fields: Json) -> JsonObject:
    nodes = [
        node(f"call-{index}", "core.subWorkflow", config={"workflowId": child})
        for index, child in enumerate(children)
    ]
    return workflow(nodes, **fields)


def test_a_workflow_with_unknown_children_is_refused_with_every_place(acme: Wire) -> None:
    known = acme.register(workflow([node("n")]))
    response = acme.post("/v1/workflows", calling("not-there", known, "nor-here"))

    assert response.status_code == 400
    assert response.json()["error"] == "unknown_child_workflow"
    assert [fault["path"] for fault in response.json()["details"]["errors"]] == [
        "nodes.0.config.workflowId",
        "nodes.2.config.workflowId",
    ]
    assert "not-there" in response.json()["message"]


def test_a_rule_that_names_an_unknown_worker_is_refused(acme: Wire) -> None:
    decision = {"kind": "next-worker", "nextWorkerIds": ["not-there"]}
    config = {"rules": [{"when": "true", "decision": decision}]}
    boss = node("boss", "core.orchestrator.supervisor", config=config)
    response = acme.post("/v1/workflows", workflow([boss]))

    assert response.json()["error"] == "unknown_child_workflow"
    (fault,) = response.json()["details"]["errors"]
    assert fault["path"] == "nodes.0.config.rules.0.decision.nextWorkerIds.0"


def test_another_tenant_s_workflow_is_an_unknown_child(acme: Wire, globex: Wire) -> None:
    foreign = globex.register(workflow([node("n")]))

    response = acme.post("/v1/workflows", calling(foreign))

    assert response.json()["error"] == "unknown_child_workflow"


def test_a_workflow_can_start_itself_and_shared_workflows(acme: Wire) -> None:
    own = fresh()

    assert acme.post("/v1/workflows", calling(own, "hello", id=own)).status_code == 201


def test_a_check_names_an_unknown_child_unless_it_is_in_the_same_batch(
    acme: Wire,
) -> None:
    definition = calling("first", "second")

    alone = acme.post("/v1/workflows:validate", definition).json()
    together = acme.post("/v1/workflows:validate?alongside=first,second", definition).json()

    assert [fault["path"] for fault in alone["errors"]] == [
        "nodes.0.config.workflowId",
        "nodes.1.config.workflowId",
    ]
    assert together["valid"] is True


def test_two_workflows_that_start_each_other_are_registered_one_by_one(acme: Wire) -> None:
    one, other = fresh(), fresh()

    alone = acme.post("/v1/workflows", calling(other, id=one))
    first = acme.post(f"/v1/workflows?alongside={one},{other}", calling(other, id=one))
    early = acme.run(one)["error"]
    second = acme.post("/v1/workflows", calling(one, id=other))

    assert alone.json()["error"] == "unknown_child_workflow"
    assert first.status_code == 201
    assert early["code"] == "unknown_child_workflow"
    assert second.status_code == 201


def test_files_of_one_directory_can_start_each_other_and_a_missing_one_is_unknown_to_a_run(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "workflows"
    directory.mkdir()
    one, other = calling("other", id="one"), calling("one", id="other")
    orphan = calling("not-there", id="orphan")
    parent = calling("orphan", id="parent")
    for definition in (one, other, orphan, parent):
        (directory / f"{definition['id']}.json").write_text(json.dumps(definition))

    with (
        served(tmp_path / "data", "--workflows", str(directory)) as host,
        Wire(host.url, ACME) as w,
    ):
        listed = {item["id"] for item in w.document("/v1/workflows")["items"]}

        assert {"one", "other", "parent"} <= listed
        assert "orphan" not in listed
        assert "not-there" in host.log()
        assert w.run("parent")["error"]["code"] == "unknown_child_workflow"


# Variables mapped back from a child


def harvesting(child: str, **mapping: str) -> JsonObject:
    config: JsonObject = {"workflowId": child, "outputMapping": mapping}
    return workflow([node("call", "core.subWorkflow", config=config)])


def test_a_mapping_of_a_variable_that_the_child_never_sets_is_reported(acme: Wire) -> None:
    set_total = node("set", "core.setVariable", config={"name": "total", "value": 7})
    child = acme.register(workflow([set_total], variables=[variable("result")]))
    definition = harvesting(child, mine="resulte", sum="total", other="result", more="nothing")

    registered = acme.post("/v1/workflows", definition)
    checked = acme.post("/v1/workflows:validate", definition).json()

    assert registered.status_code == 201
    assert checked["valid"] is True
    assert registered.json()["warnings"] == checked["warnings"]
    assert checked["warnings"] == [
        {
            "path": "nodes.0.config.outputMapping.mine",
            "message": f"workflow {child!r} sets no variable 'resulte', so nothing is mapped: "
            "did you mean 'result'?",
        },
        {
            "path": "nodes.0.config.outputMapping.more",
            "message": f"workflow {child!r} sets no variable 'nothing', so nothing is mapped: "
            "expected one of result, total",
        },
    ]


def test_a_mapping_of_a_variable_that_a_worker_never_sets_is_reported(acme: Wire) -> None:
    worker = acme.register(workflow([node("n")], variables=[variable("answer")]))
    config = {"perWorkerOutputMappings": {worker: {"reply": "anwser"}}}
    terminate = {"when": "true", "decision": {"kind": "terminate", "reason": "done"}}
    boss = node("boss", "core.orchestrator.supervisor", config={"rules": [terminate]})
    definition = workflow([boss, node("work", "core.dispatch", config=config)])

    [warning] = acme.post("/v1/workflows:validate", definition).json()["warnings"]

    assert warning["path"] == f"nodes.1.config.perWorkerOutputMappings.{worker}.reply"
    assert "did you mean 'answer'?" in warning["message"]


def test_an_input_of_a_child_can_be_mapped_back(acme: Wire) -> None:
    child = acme.register(workflow([node("n")]))
    config = {
        "workflowId": child,
        "inputMapping": {"theirs": "mine"},
        "outputMapping": {"mine": "theirs"},
    }
    definition = workflow(
        [node("call", "core.subWorkflow", config=config)], variables=[variable("mine")]
    )

    assert "warnings" not in acme.post("/v1/workflows", definition).json()


def test_another_tenant_s_child_reveals_nothing_about_its_variables(
    acme: Wire, globex: Wire
) -> None:
    child = acme.register(workflow([node("n")], variables=[variable("result")]))

    response = globex.post("/v1/workflows", harvesting(child, mine="resulte"))

    assert response.json()["error"] == "unknown_child_workflow"
    assert "'result'" not in response.text


def test_a_child_without_the_mapped_variable_keeps_the_parent_s_and_logs_a_warning(
    acme: Wire,
) -> None:
    child = acme.register(workflow([node("n")], variables=[variable("result", defaultValue="x")]))
    definition = harvesting(child, mine="resulte", other="result")
    definition["variables"] = [variable("mine", defaultValue="before")]
    run = acme.run(acme.register(definition))

    outputs = acme.log(run["runId"])
    [ended] = [e for e in outputs if e["type"] == "node.completed"]

    assert run["status"] == "completed"
    assert run["variables"] == {"mine": "before", "other": "x"}
    assert ended["payload"]["outputs"]["unmapped"] == {"mine": "resulte"}
