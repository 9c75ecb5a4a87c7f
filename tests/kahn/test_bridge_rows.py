"""The bridge row by row: the worked examples, both dialects, and the line of each event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kahn_lines import (
    ACME,
    OTHER,
    Log,
    agent_log,
    errors_and_warnings,
    low_confidence_log,
)
from wopr.kahn.bridge.facts import to_run_id
from wopr.kahn.bridge.projection import project

MOCK = "core.conformance.mock-agent"


def test_the_first_worked_example() -> None:
    log = Log()
    log.add("node.started", typeId="t", agent={"agentId": MOCK})
    log.add("agent.reasoned", agentId=MOCK, reasoning="hm", verbosity="summary")
    call = {"agentId": MOCK, "toolName": "openwop.echo", "callId": "c1"}
    log.add("agent.toolCalled", **call, inputs={"x": 1})
    log.add("agent.toolReturned", **call, outcome={"x": 1}, durationMs=1)
    log.add("agent.handoff", fromAgentId=MOCK, toAgentId="core.conformance.handoff-target")
    log.add("agent.decided", agentId=MOCK, decision={}, confidence=1)
    log.add("node.completed")
    log.add("run.completed", None)

    assert log.projected_lines() == [
        "agent_run_start",
        "0 thinking>tool_call tool_call:openwop.echo",
        "tool_invocation step 0 ok",
        "0 tool_call>tool_result",
        "0 tool_result>response handoff:core:conformance:handoff-target",
        "0 response>reflect decided",
        "audit_checkpoint openwop:confidence pass",
        "0 reflect>converged run.completed",
        "agent_run_end converged 1.0 steps=1 tools=1 audits=1 passed=1 failed=0",
    ]
    assert errors_and_warnings(project(log.events)) == []


def test_the_second_worked_example() -> None:
    log = low_confidence_log({"ratified": True})

    assert log.projected_lines() == [
        "agent_run_start",
        "0 thinking>response decided",
        "0 response>reflect decided",
        "audit_checkpoint openwop:confidence fail",
        "0 reflect>thinking bridge:implied",
        "1 thinking>blocked-on-clarification low-confidence",
        "1 blocked-on-clarification>thinking operator:ratified",
        "audit_checkpoint operator:ratified pass",
        "2 thinking>response bridge:implied",
        "2 response>reflect bridge:implied",
        "2 reflect>converged run.completed",
        "agent_run_end converged 1.0 steps=3 tools=0 audits=2 passed=1 failed=1",
    ]


def test_parallel_calls_add_no_transition_and_the_last_return_ends_them() -> None:
    log = agent_log()
    for call_id in ("c1", "c2"):
        log.add("agent.toolCalled", **ACME, toolName="grep", callId=call_id)
    for call_id in ("c2", "c1"):
        log.add("agent.toolReturned", **ACME, toolName="grep", callId=call_id, outcome="x")

    assert log.projected_lines()[1:] == [
        "0 thinking>tool_call tool_call:grep",
        "tool_invocation step 0 ok",
        "tool_invocation step 0 ok",
        "0 tool_call>tool_result",
    ]
    assert [each["duration_s"] for each in log.lines()[2:4]] == [0.001, 0.003]


def test_the_older_dialect_is_read_alike() -> None:
    schema, prose = Log(), Log()
    schema.add("agent.reasoned", **ACME, reasoning="hm")
    prose.add("agent.reasoned", agent=ACME, summary="hm")
    schema.add("agent.toolCalled", **ACME, toolName="t", callId="c", inputs={"b": 1, "a": 2})
    prose.add("agent.toolCalled", agent=ACME, toolId="t", callId="c", arguments={"a": 2, "b": 1})
    returned = {"toolName": "t", "outcome": {"durationMs": 7}, "durationMs": 7}
    schema.add("agent.toolReturned", **ACME, callId="c", **returned)
    prose.add("agent.toolReturned", agent=ACME, toolId="t", callId="c", result={"durationMs": 7})
    failed = {"toolName": "u", "callId": "d", "error": {"code": "x", "message": "y"}}
    schema.add("agent.toolReturned", **ACME, **failed)
    failed = {"toolId": "u", "callId": "d", "error": {"error": "x", "message": "y"}}
    prose.add("agent.toolReturned", agent=ACME, **failed)
    schema.add("agent.handoff", fromAgentId=ACME["agentId"], toAgentId="b.c")
    prose.add("agent.handoff", **{"from": ACME, "to": {"agentId": "b.c"}})
    schema.add("node.suspended", kind="approval", **ACME)
    prose.add("node.suspended", reason="approval", data=ACME)

    assert list(project(schema.events)) == list(project(prose.events))
    assert len(schema.lines()) == 9


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"outcome": "text"}, {"ok": True, "output_summary": "text"}),
        ({"outcome": None}, {"ok": True, "output_summary": "null"}),
        ({"outcome": {"b": [1], "a": "ü"}}, {"ok": True, "output_summary": '{"a":"ü","b":[1]}'}),
        ({"outcome": "x" * 2048}, {"ok": True, "output_summary": "x" * 2048}),
        ({"outcome": "x" * 2049}, {"ok": True, "output_summary": "x" * 2047 + "…"}),
        ({"outcome": 1, "error": None}, {"ok": True, "output_summary": "1"}),
        ({"status": "rate_limited"}, {"ok": False, "error": "rate_limited"}),
        ({"error": {"message": "m"}}, {"ok": False, "error": "m"}),
        (
            {"error": {"code": "c", "message": "m" * 3000}},
            {"ok": False, "error": "c: " + "m" * 2044 + "…"},
        ),
        ({"error": 7}, {"ok": False, "error": "7"}),
    ],
)
def test_a_returned_tool_is_described_in_bounded_texts(
    returned: dict[str, Any], expected: dict[str, Any]
) -> None:
    log = agent_log()
    log.add("agent.toolReturned", **ACME, toolName="t", callId="c", **returned)

    line = log.lines()[1]

    names = ("ok", "output_summary", "error")
    assert {name: line[name] for name in names if name in line} == expected


@pytest.mark.parametrize(
    ("told", "seconds"), [(1234.5678, 1.235), (0, 0.0), (-1, 0.001), ("x", 0.001)]
)
def test_a_tool_s_duration_comes_from_the_log_or_the_time_since_its_call(
    told: float | str, seconds: float
) -> None:
    log = agent_log()
    log.add("agent.toolCalled", **ACME, toolName="t", callId="c")
    log.add("agent.toolReturned", **ACME, toolName="t", callId="c", durationMs=told)

    assert log.lines()[2]["duration_s"] == seconds


def test_a_line_contains_its_origin() -> None:
    log = Log("run.with dots")
    log.add("agent.invocation.started", **ACME, invocationId="i", resolvedModel="large")
    log.add("agent.toolReturned", **ACME, toolName="t", callId="c", outcome=1)

    start, tool = log.lines()

    assert start == {
        "ts": "2026-03-04T05:06:00.001Z",
        "run_id": to_run_id("run.with dots"),
        "event": "agent_run_start",
        "agent_id": "vendor:acme:one",
        "task": "flow/n1",
        "model": "large",
        "openwop_agent_id": "vendor.acme.one",
        "openwop_run_id": "run.with dots",
        "openwop_event_id": "e1",
        "openwop_node_id": "n1",
    }
    assert (tool["openwop_call_id"], tool["openwop_event_id"]) == ("c", "e2")


def test_the_model_is_named_only_by_a_first_event_that_knows_it() -> None:
    log = agent_log()
    log.add("agent.invocation.started", **ACME, invocationId="i", resolvedModel="large")

    assert "model" not in log.lines()[0]


def test_the_task_is_the_workflow_and_the_node_as_far_as_known() -> None:
    nowhere, headless = Log(), Log()
    nowhere.add("agent.reasoned", None, **ACME, reasoning="")
    headless.add("agent.reasoned", **ACME, reasoning="")
    del headless.events[0]

    assert nowhere.lines()[0]["task"] == "flow"
    assert headless.lines()[0]["task"] == "run"


def test_a_hand_off_does_not_start_an_agent_and_the_system_never_starts() -> None:
    log = agent_log()
    log.add("agent.handoff", fromAgentId=ACME["agentId"], toAgentId=OTHER["agentId"])
    log.add("agent.decided", agentId="core.system", decision=1, confidence=0.1)
    log.add("run.completed", None)

    assert [each.split()[0] for each in log.projected_lines()] == [
        "agent_run_start",
        "0",
        "agent_run_end",
    ]


def test_an_event_without_an_agent_belongs_to_the_last_agent_of_its_node() -> None:
    log = agent_log()
    log.add("agent.decided", "n2", **OTHER, decision=1)
    log.add("agent.reasoned", "n1", reasoning="")
    log.add("node.suspended", "n2", interruptId="i", kind="clarification")
    log.add("node.suspended", "n3", interruptId="j", kind="clarification")

    moved = [(each["agent_id"], each["to"]) for each in log.lines() if "to" in each]
    assert moved[-1] == ("vendor:acme:two", "blocked-on-clarification")
    assert {agent for agent, _ in moved} == {"vendor:acme:two"}


def test_a_handoff_reported_on_the_receiver_s_node_assigns_the_node_to_the_receiver() -> None:
    log = agent_log()
    log.add("node.started", "n2", typeId="t", agent=OTHER)
    log.add("agent.handoff", "n2", fromAgentId=ACME["agentId"], toAgentId=OTHER["agentId"])
    log.add("node.suspended", "n2", interruptId="i", kind="clarification")

    blocked = log.lines()[-1]
    assert (blocked["agent_id"], blocked["to"]) == ("vendor:acme:two", "blocked-on-clarification")


def test_a_supervisor_that_asks_the_user_is_blocked_until_it_decides_again() -> None:
    log = agent_log()
    log.add("runOrchestrator.decided", **ACME, decision={"kind": "ask-user", "prompt": "?"})
    log.add("clarification.requested", questions=[])
    log.add("runOrchestrator.decided", **ACME, decision={"kind": "terminate"})
    log.add("run.completed", None)

    assert log.projected_lines()[3:] == [
        "0 reflect>thinking bridge:implied",
        "1 thinking>blocked-on-clarification ask-user",
        "1 blocked-on-clarification>thinking bridge:implied",
        "2 thinking>response decided",
        "2 response>reflect decided",
        "2 reflect>converged run.completed",
        "agent_run_end converged 1.0 steps=3 tools=0 audits=0 passed=0 failed=0",
    ]


def test_caps_and_evaluations_are_about_the_run() -> None:
    log = Log()
    log.add("cap.breached", kind="node-executions", limit=5, observed=6)
    log.add("eval.scored", None, taskId="Task One", score=0.25, passed=False)
    log.add("eval.scored", None, taskId="two", score=1, passed=True)

    cap, scored, passed = log.lines()

    assert cap == cap | {
        "agent_id": None,
        "checkpoint_id": "cap:node-executions",
        "result": "fail",
        "evidence": {"limit": 5, "observed": 6},
    }
    assert scored == scored | {
        "agent_id": None,
        "checkpoint_id": "eval:task-one",
        "result": "fail",
        "evidence": {"score": 0.25},
    }
    assert passed["result"] == "pass"


@pytest.mark.parametrize(
    ("kind", "is_pause"),
    [
        *((kind, True) for kind in ("low-confidence", "clarification", "approval")),
        *((kind, True) for kind in ("conversation.exchange", "x-host-page")),
        *((kind, False) for kind in ("external-event", "custom", "conversation")),
    ],
)
def test_only_a_question_to_a_person_blocks(kind: str, is_pause: bool) -> None:
    log = agent_log()
    log.add("node.suspended", interruptId="i", kind=kind)

    assert log.projected_lines()[1:] == (
        [f"0 thinking>blocked-on-clarification {kind}"] if is_pause else []
    )


@pytest.mark.parametrize(
    ("configurable", "threshold", "result"),
    [
        ({}, None, "pass"),
        ({"escalationThreshold": 0.8}, None, "fail"),
        ({"escalationThreshold": 0.8}, 0.7, "pass"),
        ({"escalationThreshold": 2}, None, "pass"),
        ({"escalationThreshold": True}, None, "pass"),
    ],
)
def test_the_threshold_is_the_run_s_own_unless_one_is_given(
    configurable: dict[str, Any], threshold: float | None, result: str
) -> None:
    log = agent_log(configurable=configurable)
    log.add("agent.decided", **ACME, decision=1, confidence=0.75)

    assert log.projected_lines(threshold)[-1] == f"audit_checkpoint openwop:confidence {result}"


def test_a_wait_for_a_question_belongs_to_the_supervisor_that_asks() -> None:
    log = Log()
    asks = {"kind": "ask-user", "prompt": "which one?"}
    log.add("runOrchestrator.decided", "s", agentId=MOCK, decision=asks)
    log.add("node.suspended", "d", kind="clarification", interruptId="int-1")
    log.add("interrupt.resolved", "d", resumeValue={"answers": {"q1": "that one"}})

    moves = [each for each in log.lines() if each["event"] == "agent_transition"]

    assert [each.get("reason") for each in moves[-2:]] == ["ask-user", "operator:answered"]


def test_a_wait_at_the_confidence_floor_names_the_measure_of_the_supervisor() -> None:
    log = Log()
    unsure = {"kind": "next-worker", "nextWorkerIds": ["w"], "confidence": 0.6}
    log.add("runOrchestrator.decided", "s", agentId=MOCK, decision=unsure)
    log.add("core.workflowChain.confidence-escalated", "d", floor=0.8, confidence=0.6)
    log.add("node.suspended", "d", kind="approval", interruptId="int-1")
    log.add("interrupt.resolved", "d", resumeValue={"action": "edit-accept"})
    log.add("run.completed", None)

    end = log.lines()[-1]

    assert (end["outcome"], end["convergence_score"]) == ("partial", 0.75)
