"""The end of an agent's run in KAHN lines: outcomes and scores."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kahn_lines import ACME, OTHER, agent_log, low_confidence_log, tell

ERROR = {"code": "c", "message": "m"}


@pytest.mark.parametrize(
    ("resume", "audits", "end"),
    [
        ({"text": "yes"}, [], ("partial", 0.7143)),
        ({"action": "approve"}, ["operator:ratified pass"], ("converged", 1.0)),
        ({"rejected": True}, ["operator:rejected fail"], ("partial", 0.7143)),
        ({"action": "reject"}, ["operator:rejected fail"], ("partial", 0.7143)),
        ({"decision": {}}, ["operator:overridden warn"], ("partial", 0.7143)),
    ],
)
def test_an_operator_s_answer_decides_a_doubtful_decision(
    resume: dict[str, Any], audits: list[str], end: tuple[str, float]
) -> None:
    log = low_confidence_log(resume)

    told = [each for each in log.projected_lines() if each.startswith("audit_checkpoint operator")]
    assert told == [f"audit_checkpoint {audit}" for audit in audits]
    assert (log.end()["outcome"], log.end()["convergence_score"]) == end


def test_an_agent_cancelled_while_it_waits_is_aborted_without_a_score() -> None:
    log = agent_log()
    log.add("node.suspended", interruptId="i", kind="clarification")
    log.add("run.cancelled", None)

    assert log.projected_lines()[-2:] == [
        "0 blocked-on-clarification>failed run.cancelled",
        "agent_run_end aborted - steps=1 tools=0 audits=0 passed=0 failed=0",
    ]


def test_an_unreturned_tool_call_is_closed_when_the_run_fails() -> None:
    log = agent_log()
    log.add("agent.toolCalled", **ACME, toolName="grep", callId="c1", argsHash="ab")
    log.add("run.failed", None, error={"code": "node_timeout", "message": "m"})

    lost = log.lines()[2]
    assert log.projected_lines()[1:] == [
        "0 thinking>tool_call tool_call:grep",
        "tool_invocation step 0 no_return",
        "0 tool_call>failed run.failed:node_timeout",
        "agent_run_end aborted - steps=1 tools=1 audits=0 passed=0 failed=0",
    ]
    assert lost["duration_s"] == 0.001
    assert lost["input_summary"] == "sha256:ab"
    assert lost["openwop_call_id"] == "c1"


def test_an_agent_that_still_waits_for_a_tool_has_not_converged() -> None:
    log = agent_log()
    log.add("agent.toolCalled", **ACME, toolName="grep", callId="c1")
    log.add("agent.decided", **ACME, decision=1, confidence=1)
    log.add("run.completed", None)

    assert (log.end()["outcome"], log.end()["convergence_score"]) == ("partial", 0.99)


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ({}, "escaped"),
        ({"decision": 1, "confidence": 0.6}, "escaped"),
        ({"decision": 1}, "escaped"),
        ({"decision": 1, "confidence": 0.7}, "converged"),
    ],
)
def test_a_forbidden_tool_call_is_an_escape_until_a_confident_decision(
    after: dict[str, Any], outcome: str
) -> None:
    log = agent_log()
    log.add("agent.toolReturned", **ACME, toolName="rm", callId="c", status="forbidden")
    if after:
        log.add("agent.decided", **ACME, **after)
    log.add("run.completed", None)

    assert log.end()["outcome"] == outcome
    assert ("convergence_score" in log.end()) is (outcome == "converged")


def test_a_refused_agent_has_escaped() -> None:
    log = agent_log()
    log.add("agent.decided", **ACME, decision=1, confidence=1)
    log.add("agent.invocation.completed", **ACME, invocationId="i", outcome="refused")
    log.add("run.completed", None)

    assert log.end()["outcome"] == "escaped"


def test_agents_without_a_decision_are_partial_without_a_score() -> None:
    log = agent_log()
    log.add("agent.toolCalled", **ACME, toolName="grep", callId="c1")
    log.add("agent.toolReturned", **ACME, toolName="grep", callId="c1", outcome=1)
    log.add("run.completed", None)

    assert (
        log.projected_lines()[-1]
        == "agent_run_end partial - steps=1 tools=1 audits=0 passed=0 failed=0"
    )


def test_a_worker_that_left_the_run_is_not_aborted_with_it() -> None:
    log = agent_log()
    log.add("agent.handoff", fromAgentId=ACME["agentId"], toAgentId=OTHER["agentId"])
    log.add("node.started", "n2", typeId="t", agent=OTHER)
    log.add("run.cancelled", None)

    assert log.end("vendor:acme:one")["outcome"] == "partial"
    assert log.end("vendor:acme:two")["outcome"] == "aborted"


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([("agent.decided", {"decision": 1})], "converged"),
        ([("agent.decided", {"decision": 1}), ("node.failed", {})], "aborted"),
        ([("agent.reasoned", {"reasoning": ""})], "aborted"),
        ([("agent.decided", {"decision": 1}), ("node.suspended", {"kind": "approval"})], "aborted"),
        ([("agent.decided", {"decision": 1, "confidence": 0.1})], "partial"),
        (
            [("agent.decided", {"decision": 1}), ("agent.invocation.completed", {"outcome": "x"})],
            "converged",
        ),
    ],
)
def test_a_failed_run_aborts_unfinished_agents(
    events: list[tuple[str, dict[str, Any]]], outcome: str
) -> None:
    log = agent_log()
    for event_type, payload in events:
        log.add(event_type, **ACME, **payload)
    log.add("run.failed", None, error=ERROR)

    assert log.end()["outcome"] == outcome


def test_a_run_error_names_the_failed_node() -> None:
    log = agent_log()
    log.add("agent.decided", **ACME, decision=1)
    log.add("node.started", "n2", typeId="t", agent=OTHER)
    log.add("agent.decided", "n2", **OTHER, decision=1)
    log.add("run.failed", None, error=ERROR, failedNodeId="n2")

    assert log.end("vendor:acme:one")["outcome"] == "converged"
    assert log.projected_lines()[-2:] == [
        "0 reflect>failed run.failed:c",
        "agent_run_end aborted - steps=1 tools=0 audits=0 passed=0 failed=0",
    ]


def test_a_dead_lettered_run_aborts_and_only_the_first_end_counts() -> None:
    log = agent_log()
    log.add("run.dead_lettered", None, runId="run-1", reason="r", attempts=3)
    log.add("run.failed", None, error=ERROR)
    log.add("agent.reasoned", **ACME, reasoning="")

    assert log.projected_lines()[1:] == [
        "0 thinking>failed run.dead_lettered",
        "agent_run_end aborted - steps=1 tools=0 audits=0 passed=0 failed=0",
    ]


def test_success_criteria_are_audits_and_an_unmet_one_prevents_convergence() -> None:
    criteria = [{"key": "Tests Green", "met": True}, {"key": "docs", "met": False}]
    decision = {"kind": "terminate", "successCriteria": criteria, "confidence": 0.9}
    log = agent_log()
    log.add("runOrchestrator.decided", **ACME, decision=decision)
    log.add("run.completed", None)

    assert log.projected_lines()[3:] == [
        "audit_checkpoint openwop:confidence pass",
        "audit_checkpoint criteria:tests-green pass",
        "audit_checkpoint criteria:docs fail",
        "agent_run_end partial 0.5 steps=1 tools=0 audits=3 passed=2 failed=1",
    ]


@pytest.mark.parametrize(
    ("verdicts", "outcome", "score"),
    [
        (["pass"], "converged", 1.0),
        (["fail"], "partial", 0.0),
        (["revise"], "partial", 0.99),
        (["fail", "pass"], "converged", 1.0),
        (["pass", "fail"], "partial", 0.5),
    ],
)
def test_a_verdict_counts_for_the_agent_of_its_target(
    verdicts: list[str], outcome: str, score: float
) -> None:
    log = agent_log()
    target = log.add("agent.decided", **ACME, decision=1, confidence=0.9)
    for verdict in verdicts:
        log.add("agent.verified", "n2", **OTHER, target=target, verdict=verdict)
    log.add("run.completed", None)

    assert log.end("vendor:acme:one")["outcome"] == outcome
    assert log.end("vendor:acme:one")["convergence_score"] == score
    assert log.end("vendor:acme:two")["outcome"] == "converged"


@pytest.mark.parametrize(("verdict", "outcome"), [("pass", "converged"), ("revise", "partial")])
def test_a_passed_verification_of_a_call_is_sufficient_to_converge(
    verdict: str, outcome: str
) -> None:
    log = agent_log()
    log.add("agent.toolCalled", **ACME, toolName="t", callId="c")
    log.add("agent.toolReturned", **ACME, toolName="t", callId="c", outcome=1)
    said = {"target": "c", "criteria": ["a"], "confidence": 1}
    log.add("agent.verified", "n2", **OTHER, **said, verdict=verdict)
    log.add("run.completed", None)

    audit = next(each for each in log.lines() if each["event"] == "audit_checkpoint")
    result = "pass" if verdict == "pass" else "warn"
    assert tell(audit) == f"audit_checkpoint verify:verdict {result}"
    assert audit["agent_id"] == "vendor:acme:two"
    assert audit["evidence"] == said
    assert log.end("vendor:acme:one")["outcome"] == outcome


def test_an_unsure_verifier_has_not_converged_itself() -> None:
    log = agent_log()
    target = log.add("agent.decided", **ACME, decision=1)
    log.add("agent.verified", "n2", **OTHER, target=target, verdict="pass", confidence=0.35)
    log.add("run.completed", None)

    end = log.end("vendor:acme:two")
    assert (end["outcome"], end["convergence_score"]) == ("partial", 0.5)


def test_a_new_decision_replaces_the_verdict_on_the_last() -> None:
    log = agent_log()
    target = log.add("agent.decided", **ACME, decision=1, confidence=0.1)
    log.add("agent.verified", "n2", **OTHER, target=target, verdict="revise")
    log.add("agent.decided", **ACME, decision=2, confidence=0.8)
    log.add("run.completed", None)

    assert log.end("vendor:acme:one")["outcome"] == "converged"
