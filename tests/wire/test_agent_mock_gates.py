from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.agent_definitions import (
    DONE,
    MOCK_AGENT,
    SUPERVISOR,
    answer,
    events_of,
    faults,
    mock,
    only_event,
    run_and_log,
    scripted,
    supervised,
    waiting_run,
)
from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.recorder import OFFICIAL
from wopr.protocol.documents import Json, JsonObject

ECHO: JsonObject = {"toolId": "openwop.echo:echo", "result": 1}
IDENTITY_HOOKS = node("hooked", "core.identity", config={"emitDuplicateMessageId": True})
AUTO_RESUME = node("talk", "core.conversationGate", config={"mockAutoResume": True})


def refusal(wire: Wire, definition: JsonObject) -> JsonObject:
    response = wire.post("/v1/workflows", definition)
    assert response.status_code == 400, response.text
    found: JsonObject = response.json()
    return found


@pytest.fixture(scope="module")
def author(host: ServedHost) -> Iterator[Wire]:
    """Connect a client whose key may author conformance workflows under any name."""
    options = ("--tenant", "acme", "--role", "developer", "--scope", "conformance:author")
    made = json.loads(host.command("keys", "create", "--json", "--test", *options))
    with Wire(host.url, made["key"]) as wire:
        yield wire


# Allowed workflows


def test_a_workflow_with_the_conformance_prefix_can_use_the_mock_agent(acme: Wire) -> None:
    assert acme.post("/v1/workflows", scripted([mock()])).status_code == 201


@pytest.mark.parametrize("name", ["production", "x-conformance", "conformances"])
def test_another_workflow_is_refused_with_the_required_scope(acme: Wire, name: str) -> None:
    found = refusal(acme, workflow([mock()], id=fresh(name)))

    assert found["error"] == "validation_error"
    (fault,) = found["details"].pop("errors")
    assert found["details"] == {
        "requiredCapability": "conformance.mockAgent",
        "offendingTypeId": MOCK_AGENT,
        "nodeId": "actor",
        "field": "nodes.0.typeId",
    }
    assert fault["path"] == "nodes.0.typeId"


@pytest.mark.parametrize(
    ("scripted_node", "type_id"),
    [
        (node("supervisor", SUPERVISOR, config={"mockDispatchPlan": [DONE]}), SUPERVISOR),
        (node("supervisor", SUPERVISOR, config={"mockDecisions": [DONE]}), SUPERVISOR),
        (node("supervisor", SUPERVISOR, config={"mockPendingDecision": DONE}), SUPERVISOR),
        (node("supervisor", SUPERVISOR, config={"mockConfidence": 0.5}), SUPERVISOR),
        (IDENTITY_HOOKS, "core.identity"),
        (AUTO_RESUME, "core.conversationGate"),
    ],
    ids=["plan", "decisions", "pending", "confidence", "identity", "conversation"],
)
def test_test_hooks_are_refused_in_a_production_workflow(
    acme: Wire, scripted_node: JsonObject, type_id: str
) -> None:
    found = refusal(acme, workflow([scripted_node]))

    assert found["details"]["requiredCapability"] == "conformance.mockAgent"
    assert found["details"]["offendingTypeId"] == type_id
    assert "config." in found["message"]


def test_all_scripts_in_a_production_workflow_are_named_together(acme: Wire) -> None:
    hooked = node("s", SUPERVISOR, config={"mockConfidence": 0.5, "mockDecisions": []})
    found = refusal(acme, workflow([mock(), hooked]))

    assert [fault["path"] for fault in found["details"]["errors"]] == [
        "nodes.0.typeId",
        "nodes.1.config.mockConfidence",
        "nodes.1.config.mockDecisions",
    ]


def test_a_key_with_the_author_scope_can_script_a_workflow_of_any_name(author: Wire) -> None:
    for nodes in ([mock()], [IDENTITY_HOOKS], supervised(DONE)["nodes"]):
        definition = workflow(nodes, id=fresh("hvmap"))
        assert author.post("/v1/workflows", definition).status_code == 201


def test_an_author_s_workflow_can_be_run_by_everyone_in_the_tenant(
    author: Wire, acme: Wire
) -> None:
    workflow_id = author.register(workflow([mock(mockReasoning=True)], id=fresh("authored")))

    run_id = acme.create(workflow_id)

    assert acme.finished(run_id)["status"] == "completed"
    assert "agent.reasoned" in acme.types(run_id)


def test_no_role_includes_the_author_scope(host: ServedHost, acme: Wire) -> None:
    roles = acme.document("/.well-known/openwop")["authorization"]["roles"]

    assert roles
    assert not any("conformance:author" in role["scopes"] for role in roles)


# Hosts without it


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    host = ServedHost(tmp_path_factory.mktemp("production"))
    host.start()
    with Wire(host.url, ACME) as wire:
        yield wire
    host.stop()


def test_the_mock_agent_is_advertised_exactly_where_it_is_registered(
    acme: Wire, production: Wire
) -> None:
    for wire, is_there in ((acme, True), (production, False)):
        discovery = wire.document("/.well-known/openwop")
        types = {each["typeId"] for each in wire.document("/v1/node-types")["items"]}

        assert (MOCK_AGENT in types) is is_there
        assert (discovery.get("conformance", {}).get("mockAgent") is True) is is_there
        assert discovery["capabilities"].get("conformance") == discovery.get("conformance")


def test_a_production_host_refuses_the_mock_agent_under_any_name(production: Wire) -> None:
    for name in (fresh("conformance-x"), fresh("other")):
        found = refusal(production, workflow([mock()], id=name))

        assert found["error"] == "capability_required"
        assert found["details"] == {
            "requiredCapability": "conformance.mockAgent",
            "offendingTypeId": MOCK_AGENT,
            "nodeId": "actor",
        }


@pytest.mark.parametrize(
    "definition",
    [supervised(DONE), scripted([IDENTITY_HOOKS]), scripted([AUTO_RESUME])],
    ids=["supervisor", "identity", "conversation"],
)
def test_a_production_host_ignores_test_hooks(production: Wire, definition: JsonObject) -> None:
    assert refusal(production, definition)["details"]["requiredCapability"] == (
        "conformance.mockAgent"
    )


def test_a_production_host_has_no_conformance_agents_and_no_fixtures(production: Wire) -> None:
    assert production.document("/v1/agents") == {"agents": [], "total": 0}
    assert "fixtures" not in production.document("/.well-known/openwop")


# Config

BAD: dict[str, tuple[JsonObject, str]] = {
    "a stray key": ({"mock": 1}, ".mock"),
    "confidence above one": ({"mockConfidence": 1.7}, ".mockConfidence"),
    "confidence below zero": ({"mockConfidence": -0.1}, ".mockConfidence"),
    "a short agent id": ({"agentId": "ab"}, ".agentId"),
    "reasoning without a summary": ({"mockReasoning": {"trace": "t"}}, ".mockReasoning"),
    "reasoning with a stray key": ({"mockReasoning": {"summary": "s", "x": 1}}, ".mockReasoning"),
    "reasoning as a text": ({"mockReasoning": "s"}, ".mockReasoning"),
    "a call without an end": ({"mockToolCalls": [{"toolId": "t"}]}, ".mockToolCalls.0"),
    "a call with two ends": (
        {"mockToolCalls": [ECHO | {"error": {"error": "e", "message": "m"}}]},
        ".mockToolCalls.0",
    ),
    "a call with two ends of which one is null": (
        {
            "mockToolCalls": [
                {"toolId": "t", "result": None, "error": {"error": "e", "message": "m"}}
            ]
        },
        ".mockToolCalls.0",
    ),
    "a call without a tool": ({"mockToolCalls": [{"result": 1}]}, ".mockToolCalls.0"),
    "a call with a stray key": ({"mockToolCalls": [ECHO | {"x": 1}]}, ".mockToolCalls.0.x"),
    "a negative duration": (
        {"mockToolCalls": [ECHO | {"durationMs": -1}]},
        ".mockToolCalls.0.durationMs",
    ),
    "an error without a message": (
        {"mockToolCalls": [{"toolId": "t", "error": {"error": "e"}}]},
        ".mockToolCalls.0.error",
    ),
    "a hand-off to nobody": ({"mockHandoff": {"reason": "r"}}, ".mockHandoff"),
    "a hand-off to a short id": ({"mockHandoff": {"toAgentId": "x"}}, ".mockHandoff.toAgentId"),
    "a decision without one": ({"mockDecision": {"confidence": 1}}, ".mockDecision"),
    "an impossible confidence": (
        {"mockDecision": {"decision": 1, "confidence": 2}},
        ".mockDecision.confidence",
    ),
}


@pytest.mark.parametrize(("config", "at"), BAD.values(), ids=BAD)
def test_an_invalid_script_is_refused_at_its_place(acme: Wire, config: JsonObject, at: str) -> None:
    assert list(faults(acme, scripted([mock(**config)]))) == [f"nodes.0.config{at}"]


def test_all_faults_of_a_script_are_named_together(acme: Wire) -> None:
    calls = [{"toolId": "t"}, ECHO, ECHO | {"error": {"error": "e", "message": "m"}}]
    script: JsonObject = {"mockConfidence": 7, "mockToolCalls": calls, "mockHandoff": {}}

    found = faults(acme, scripted([mock(**script)]))

    assert found.keys() == {
        "nodes.0.config.mockConfidence",
        "nodes.0.config.mockToolCalls.0",
        "nodes.0.config.mockToolCalls.2",
        "nodes.0.config.mockHandoff",
    }
    assert "not both" in found["nodes.0.config.mockToolCalls.2"]


@pytest.mark.parametrize(
    "script",
    [
        {},
        {"mockToolCalls": [{"toolId": "t", "result": None}]},
        {"mockToolCalls": [{"toolId": "t", "error": {"error": "e", "message": "m"}}]},
        {"mockReasoning": True},
        {"mockDecision": {"decision": None}},
        {"mockConfidence": 0},
    ],
)
def test_a_valid_script_is_valid_by_the_published_schema_too(acme: Wire, script: Json) -> None:
    acme.register(scripted([mock(**script)]))

    if (OFFICIAL / "schemas").is_dir():
        acme.recorder.check("core-conformance-mock-agent-config.schema.json", script)


# Hosts restarted without it

LOW = 0.2
HOOKED: dict[str, tuple[JsonObject, str, str]] = {
    "the mock agent": (scripted([mock(mockReasoning=True)]), MOCK_AGENT, "actor"),
    "a plan": (supervised(DONE), "config.mockDispatchPlan", "supervisor"),
    "decisions": (
        scripted([node("supervisor", SUPERVISOR, config={"mockDecisions": [DONE]})]),
        "config.mockDecisions",
        "supervisor",
    ),
    "a pending decision": (
        scripted([node("supervisor", SUPERVISOR, config={"mockPendingDecision": DONE})]),
        "config.mockPendingDecision",
        "supervisor",
    ),
    "a confidence": (
        scripted([node("supervisor", SUPERVISOR, config={"mockConfidence": 0.9})]),
        "config.mockConfidence",
        "supervisor",
    ),
    "the default script": (
        scripted([node("supervisor", SUPERVISOR)]),
        "the default script of conformance workflows",
        "supervisor",
    ),
    "an automatic answer": (scripted([AUTO_RESUME]), "config.mockAutoResume", "talk"),
    "scripted messages": (scripted([IDENTITY_HOOKS]), "config.emitDuplicateMessageId", "hooked"),
    "a side effect for tests": (
        scripted([node("effect", "core.conformance.side-effect")]),
        "core.conformance.side-effect",
        "effect",
    ),
    "a hold for tests": (
        scripted([node("hold", "core.conformance.hold")]),
        "core.conformance.hold",
        "hold",
    ),
    "a name of the author's choice": (
        workflow([mock(mockReasoning=True)], id=fresh("authored")),
        MOCK_AGENT,
        "actor",
    ),
}
GATE = node("gate", "core.approvalGate", config={"title": "Go on?"})
LATER_MOCK = scripted([GATE, mock(mockReasoning=True)])
LATER_CHILD = scripted(
    [
        GATE,
        node("call", "core.subWorkflow", config={"workflowId": HOOKED["the mock agent"][0]["id"]}),
    ]
)
LATER_EFFECT = scripted([GATE, node("effect", "core.conformance.side-effect")])
UNSURE = supervised(DONE, supervisor={"mockConfidence": LOW})
HELD = scripted([mock(mockDecision={"decision": {"kind": "go"}, "confidence": LOW})])


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, dict[str, str]]]:
    """Restart a host without conformance, and return the runs that were in progress."""
    host = ServedHost(tmp_path_factory.mktemp("returned"), ("--conformance",))
    host.start()
    options = ("--tenant", "acme", "--role", "admin", "--scope", "conformance:author")
    key = json.loads(host.command("keys", "create", "--json", "--test", *options))["key"]
    runs: dict[str, str] = {}
    with Wire(host.url, key) as wire:
        for definition, _, _ in HOOKED.values():
            wire.register(definition)
        for name, definition in (
            ("mock", LATER_MOCK),
            ("child", LATER_CHILD),
            ("effect", LATER_EFFECT),
            ("unsure", UNSURE),
            ("held", HELD),
        ):
            runs[name] = waiting_run(wire, wire.register(definition))
        finished, _ = run_and_log(wire, HOOKED["the mock agent"][0]["id"])
        runs["finished"] = finished["runId"]
    host.options = ()
    host.restart()
    with Wire(host.url, key) as wire:
        yield wire, runs
    host.stop()


@pytest.mark.parametrize(("definition", "hook", "node_id"), HOOKED.values(), ids=HOOKED)
def test_a_workflow_with_a_test_hook_is_refused_at_start_once_the_host_does_not_advertise_it(
    returned: tuple[Wire, dict[str, str]], definition: JsonObject, hook: str, node_id: str
) -> None:
    wire, _ = returned

    response = wire.post("/v1/runs", {"workflowId": definition["id"]})

    assert response.status_code == 400
    assert response.json()["error"] == "capability_required"
    assert hook in response.json()["message"]
    assert response.json()["details"]["requiredCapability"] == "conformance.mockAgent"
    assert response.json()["details"]["nodeId"] == node_id


def test_a_fork_is_refused_like_a_start(returned: tuple[Wire, dict[str, str]]) -> None:
    wire, runs = returned

    for mode in ("replay", "branch"):
        response = wire.post(f"/v1/runs/{runs['finished']}:fork", {"mode": mode})

        assert response.status_code == 400
        assert response.json()["error"] == "capability_required"


def failed_after_answer(wire: Wire, run_id: str, node_id: str) -> str:
    """Accept the wait of a run, and return the message with which it fails."""
    answer(wire, run_id, node_id, {"action": "accept"})
    ended = wire.finished(run_id)
    assert ended["status"] == "failed"
    assert ended["error"]["code"] == "capability_not_provided"
    message: str = ended["error"]["message"]
    return message


def test_a_run_in_progress_fails_at_the_node_that_needs_the_mock_agent(
    returned: tuple[Wire, dict[str, str]],
) -> None:
    wire, runs = returned

    assert MOCK_AGENT in failed_after_answer(wire, runs["mock"], "gate")
    failed = only_event(wire.log(runs["mock"]), "node.failed")
    assert failed["payload"]["nodeId"] == "actor"
    assert "agent.reasoned" not in wire.types(runs["mock"])


def test_a_run_in_progress_fails_at_a_node_whose_type_is_for_tests_only(
    returned: tuple[Wire, dict[str, str]],
) -> None:
    wire, runs = returned

    message = failed_after_answer(wire, runs["effect"], "gate")

    assert "core.conformance.side-effect" in message


def test_a_mock_agent_with_a_held_decision_does_not_complete(
    returned: tuple[Wire, dict[str, str]],
) -> None:
    wire, runs = returned

    failed_after_answer(wire, runs["held"], "actor")

    assert len(events_of(wire.log(runs["held"]), "agent.decided")) == 1
    assert "node.completed" not in wire.types(runs["held"])


def test_a_supervisor_held_by_a_script_does_not_continue_with_it(
    returned: tuple[Wire, dict[str, str]],
) -> None:
    wire, runs = returned

    answer(wire, runs["unsure"], "supervisor", {"ratified": True})
    ended = wire.finished(runs["unsure"])

    assert ended["error"]["code"] == "capability_not_provided"
    assert "mockConfidence" in ended["error"]["message"]
    assert "runOrchestrator.decided" not in wire.types(runs["unsure"])


def test_a_child_with_a_test_hook_is_not_started(
    returned: tuple[Wire, dict[str, str]],
) -> None:
    wire, runs = returned

    assert MOCK_AGENT in failed_after_answer(wire, runs["child"], "gate")
    assert "node.dispatched" not in wire.types(runs["child"])
