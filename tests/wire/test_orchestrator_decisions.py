from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    CHAIN,
    DONE,
    SUPERVISOR,
    agent_events,
    child,
    children,
    decision_kinds,
    events_of,
    faults,
    next_worker,
    only_event,
    supervised,
)
from tests.support.client import Wire
from tests.support.definitions import edge, from_variable, node, variable, workflow
from wopr.protocol.documents import Json, JsonObject

NOOP = next_worker("conformance-noop")


def ran(wire: Wire, definition: JsonObject, **body: Json) -> tuple[JsonObject, list[JsonObject]]:
    """Return the snapshot and the log of an ended run."""
    run_id = wire.create(wire.register(definition), **body)
    found = wire.finished(run_id)
    return found, wire.log(run_id)


# One decision per turn


def test_a_decision_is_logged_before_it_is_carried_out(acme: Wire) -> None:
    _, log = ran(acme, supervised(NOOP, DONE))

    first, last = events_of(log, "runOrchestrator.decided")
    assert first["sequence"] < only_event(log, "node.dispatched")["sequence"]
    assert first["sequence"] < events_of(log, CHAIN)[0]["sequence"]
    assert last["sequence"] < only_event(log, "run.completed")["sequence"]


def test_a_decision_names_the_supervisor_s_node_on_the_envelope_only(acme: Wire) -> None:
    _, log = ran(acme, supervised(DONE))

    decided = only_event(log, "runOrchestrator.decided")
    assert decided["nodeId"] == "supervisor"
    assert decided["payload"] == {"agentId": "host:orchestrator", "decision": DONE}


def test_every_decision_comes_from_the_agent_shown_in_the_snapshot(acme: Wire) -> None:
    agent = {"agentId": "core.conformance.boss", "modelClass": "reasoning"}
    found, log = ran(acme, supervised(NOOP, NOOP, DONE, agent=agent))

    assert found["runOrchestrator"] == agent
    names = {event["payload"]["agentId"] for event in events_of(log, "runOrchestrator.decided")}
    assert names == {agent["agentId"]}


def test_the_config_names_a_supervisor_without_a_pin(acme: Wire) -> None:
    named = {"agentId": "host:planner"}
    found, log = ran(acme, supervised(DONE, supervisor=named))

    assert found["runOrchestrator"] == named
    assert only_event(log, "runOrchestrator.decided")["payload"]["agentId"] == "host:planner"


def test_the_orchestrator_is_set_once_and_another_agent_cannot_decide(acme: Wire) -> None:
    definition = supervised(DONE, agent={"agentId": "host:first"})
    usurper = node(
        "usurper", SUPERVISOR, config={"mockDispatchPlan": [DONE]}, agent={"agentId": "host:second"}
    )
    definition["nodes"].append(usurper)
    definition["edges"] = [*definition["edges"], edge("dispatch", "usurper")]

    found, log = ran(acme, definition)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "validation_error"
    assert found["runOrchestrator"] == {"agentId": "host:first"}
    assert len(events_of(log, "runOrchestrator.decided")) == 1


def test_terminate_occurs_once_and_last_and_the_run_completes(acme: Wire) -> None:
    found, log = ran(acme, supervised(NOOP, NOOP, DONE))

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "next-worker", "terminate"]
    assert log[-1]["type"] == "run.completed"


def test_after_terminate_there_is_no_other_turn(acme: Wire) -> None:
    _, log = ran(acme, supervised(DONE, NOOP))

    assert decision_kinds(log) == ["terminate"]
    started = [event["nodeId"] for event in events_of(log, "node.started")]
    assert started == ["supervisor", "dispatch"]


def test_each_turn_of_the_loop_starts_its_nodes_again(acme: Wire) -> None:
    _, log = ran(acme, supervised(NOOP, DONE))

    started = [event["nodeId"] for event in events_of(log, "node.started")]
    assert started == ["supervisor", "dispatch"] * 2


def test_decisions_never_change_the_workflow(acme: Wire) -> None:
    definition = supervised(NOOP, DONE)
    found, _ = ran(acme, definition)

    assert acme.document(f"/v1/workflows/{definition['id']}") == definition
    assert found["nodeStates"].keys() == {"supervisor", "dispatch"}


# The script


def test_an_exhausted_plan_terminates(acme: Wire) -> None:
    found, log = ran(acme, supervised(NOOP))

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "terminate"]


def test_an_invalid_entry_of_a_plan_terminates(acme: Wire) -> None:
    for broken in ({"kind": "dance"}, {"kind": "next-worker"}, 7, NOOP | {"stray": 1}):
        found, log = ran(acme, supervised(broken, NOOP))

        assert found["status"] == "completed"
        assert decision_kinds(log) == ["terminate"]


def test_a_conformance_supervisor_without_a_script_starts_one_worker_and_ends(acme: Wire) -> None:
    found, log = ran(acme, supervised())

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "terminate"]
    assert only_event(log, "node.dispatched")["payload"]["childWorkflowId"] == "conformance-noop"


def test_the_older_name_of_the_plan_has_the_same_meaning(acme: Wire) -> None:
    _, log = ran(acme, supervised(supervisor={"mockDecisions": [NOOP, DONE]}))

    assert decision_kinds(log) == ["next-worker", "terminate"]


def test_the_pending_decision_is_made_at_once(acme: Wire) -> None:
    script = {"mockConfidence": 0.9, "mockPendingDecision": NOOP}
    found, log = ran(acme, supervised(supervisor=script))

    assert found["status"] == "completed"
    assert only_event(log, "agent.decided")["payload"]["confidence"] == 0.9
    assert decision_kinds(log) == ["next-worker", "terminate"]


# Limits


def test_the_turn_beyond_the_run_s_limit_is_refused(acme: Wire) -> None:
    plan = supervised(NOOP, NOOP, NOOP, DONE)
    found, log = ran(acme, plan, configurable={"maxLoopIterations": 2})

    assert found["status"] == "failed"
    assert found["error"]["code"] == "loop_limit_exceeded"
    assert len(decision_kinds(log)) == 2
    assert only_event(log, "cap.breached")["payload"] == {
        "kind": "loop-iterations",
        "limit": 2,
        "observed": 3,
    }
    assert [event["type"] for event in log[-2:]] == ["cap.breached", "run.failed"]


def test_a_loop_that_ends_within_its_limit_does_not_exceed_it(acme: Wire) -> None:
    found, log = ran(acme, supervised(NOOP, DONE), configurable={"maxLoopIterations": 2})

    assert found["status"] == "completed"
    assert "cap.breached" not in [event["type"] for event in log]


def test_dispatch_has_its_own_cap(acme: Wire) -> None:
    capped = supervised(NOOP, NOOP, NOOP, DONE, dispatch={"iterationCap": 2})
    found, log = ran(acme, capped)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "loop_limit_exceeded"
    assert only_event(log, "cap.breached")["payload"] == {
        "kind": "loop-iterations",
        "limit": 2,
        "observed": 3,
        "nodeId": "dispatch",
        "scope": "dispatch",
    }
    assert len(children(log)) == 2
    assert [event["type"] for event in log[-2:]] == ["cap.breached", "run.failed"]


def test_turns_count_as_node_executions(acme: Wire) -> None:
    found, log = ran(acme, supervised(NOOP, DONE), configurable={"recursionLimit": 3})

    assert found["error"]["code"] == "recursion_limit_exceeded"
    assert only_event(log, "cap.breached")["payload"]["kind"] == "node-executions"


# Rules of production workflows


def ruled(*rules: tuple[str, JsonObject], **fields: Json) -> JsonObject:
    """Return a production workflow whose supervisor decides by rules."""
    config = {"rules": [{"when": when, "decision": decision} for when, decision in rules]}
    nodes = [
        node("supervisor", SUPERVISOR, config=config),
        node("dispatch", "core.dispatch", **fields.pop("dispatch", {})),
    ]
    edges = [edge("supervisor", "dispatch"), edge("dispatch", "supervisor")]
    return workflow(nodes, edges=edges, **fields)


def test_the_first_matching_rule_decides(acme: Wire) -> None:
    worker = acme.register(child())
    definition = ruled(
        ("turn < 2", next_worker(worker)),
        ("true", {"kind": "terminate", "reason": "enough"}),
    )
    found, log = ran(acme, definition)

    assert found["status"] == "completed"
    assert decision_kinds(log) == ["next-worker", "next-worker", "terminate"]


def test_a_rule_reads_inputs_variables_and_the_result_of_the_last_worker(acme: Wire) -> None:
    good = acme.register(child())
    bad = acme.register(child(node("fail", "core.fail")))
    definition = ruled(
        ("turn == 0 && inputs.order == 'small'", next_worker(bad)),
        ("nodes.dispatch.childStatus == 'failed'", next_worker(good)),
        ("nodes.dispatch.childStatus == 'completed'", DONE),
        variables=[variable("order")],
    )
    found, log = ran(acme, definition, inputs={"order": "small"})

    assert found["status"] == "completed"
    workers = [e["payload"]["childWorkflowId"] for e in events_of(log, "node.dispatched")]
    assert workers == [bad, good]


def test_without_a_matching_rule_the_supervisor_terminates(acme: Wire) -> None:
    found, log = ran(acme, ruled(("false", next_worker("conformance-noop"))))

    assert found["status"] == "completed"
    decided = only_event(log, "runOrchestrator.decided")["payload"]["decision"]
    assert decided == {"kind": "terminate", "reason": "no-rule-holds"}


def test_a_rule_that_cannot_be_evaluated_fails_the_supervisor_by_name(acme: Wire) -> None:
    found, _ = ran(acme, ruled(("variables.missing > 1", DONE)))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "expression_error"
    assert "variables.missing" in found["error"]["message"]


def test_every_broken_rule_is_named_at_registration(acme: Wire) -> None:
    found = faults(
        acme,
        ruled(("turn <", DONE), ("true", {"kind": "dance"}), ("true", next_worker()), ("", DONE)),
    )

    assert found.keys() == {
        "nodes.0.config.rules.0.when",
        "nodes.0.config.rules.1.decision",
        "nodes.0.config.rules.2.decision",
        "nodes.0.config.rules.3.when",
    }


def test_a_production_supervisor_without_rules_is_refused_with_the_requirement(
    acme: Wire,
) -> None:
    assert faults(acme, ruled()) == {
        "nodes.0.config": "a supervisor needs rules, or a prompt and a model"
    }


# The graph


def test_dispatch_needs_a_supervisor_in_the_workflow(acme: Wire) -> None:
    found = faults(acme, workflow([node("dispatch", "core.dispatch")]))

    assert list(found) == ["nodes.0.typeId"]
    assert SUPERVISOR in found["nodes.0.typeId"]


@pytest.mark.parametrize(
    ("config", "at"),
    [
        ({"stray": 1}, ".stray"),
        ({"askUserRouting": "letter"}, ".askUserRouting"),
        ({"workerDispatchModel": "thread"}, ".workerDispatchModel"),
        ({"fanOutPolicy": "parallel"}, ".fanOutPolicy"),
        ({"iterationCap": 0}, ".iterationCap"),
        ({"inputMapping": {"a": 1}}, ".inputMapping.a"),
        ({"memoryScopeIsolation": "isolated"}, ".memoryScopeIsolation"),
    ],
)
def test_the_config_of_dispatch_is_closed(acme: Wire, config: JsonObject, at: str) -> None:
    found = faults(acme, supervised(DONE, dispatch=config))

    assert list(found) == [f"nodes.1.config{at}"]


def test_dispatch_without_a_decision_to_carry_out_fails(acme: Wire) -> None:
    definition = supervised(DONE)
    definition["edges"] = [edge("dispatch", "supervisor")]
    found, _ = ran(acme, definition)

    assert found["status"] == "failed"
    assert found["error"]["code"] == "no_pending_decision"


def test_the_node_after_the_loop_starts_after_its_last_turn(acme: Wire) -> None:
    definition = supervised(NOOP, DONE, variables=[variable("seen", defaultValue="x")])
    definition["nodes"].append(
        node("after", "core.identity", inputs={"seen": from_variable("seen")})
    )
    definition["edges"] = [*definition["edges"], edge("dispatch", "after")]
    found, log = ran(acme, definition)

    assert found["status"] == "completed"
    assert [e["nodeId"] for e in events_of(log, "node.started")][-2:] == ["dispatch", "after"]


def test_a_supervisor_without_a_confidence_emits_no_agent_events(
    acme: Wire,
) -> None:
    _, log = ran(acme, supervised(NOOP, DONE))

    assert agent_events(log) == []


def test_both_spellings_of_the_capability_are_advertised(acme: Wire) -> None:
    discovery = acme.document("/.well-known/openwop")

    assert discovery["agents"]["orchestrator"] is discovery["agents"]["dispatch"] is True
    assert discovery["agents"]["dispatchMapping"] is True
    assert discovery["orchestrator"]["supported"] is discovery["dispatch"]["supported"] is True
    assert discovery["dispatch"]["models"] == ["child-run"]
    assert discovery["limits"]["maxLoopIterations"] >= 1
    for family in ("agents", "orchestrator", "dispatch", "multiAgent", "conformance", "toolHooks"):
        assert discovery["capabilities"][family] == discovery[family]
