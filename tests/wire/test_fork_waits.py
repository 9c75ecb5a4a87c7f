"""Branches of runs that waited: a recorded answer is kept, and a decision is routed once."""

from __future__ import annotations

import pytest

from tests.support.agent_definitions import (
    DISPATCH,
    DONE,
    ESCALATED,
    LOOP,
    SUPERVISOR,
    decision_kinds,
    events_of,
    next_worker,
)
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.forks import fork, forked, until_ended
from wopr.protocol.documents import Json, JsonObject

ACCEPT: JsonObject = {"action": "accept"}
REJECT: JsonObject = {"action": "reject"}
REFINE: JsonObject = {
    "action": "refine",
    "refineFeedback": {"scope": "whole", "text": "Shorter."},
}
BLUE: JsonObject = {"answers": {"q1": "blue"}}
CLOSE: JsonObject = {"operation": "close", "outcome": {"ok": True}}
SAY: JsonObject = {"operation": "exchange", "turn": {"content": "hello"}}
RULES: list[Json] = [
    {"when": "turn == 0", "decision": next_worker("conformance-noop")},
    {"when": "turn == 1", "decision": DONE},
]
TALK = workflow([node("talk", "core.conversationGate", config={"prompt": "Well?"}), node("end")])
LATE = workflow(
    [node("gate", "core.approvalGate", config={"title": "May it?", "timeoutMs": 1}), node("end")],
)
GOVERNED = workflow(
    [
        node("draft"),
        node(
            "gate",
            "core.openwop.governance.approvalGate",
            config={"requiredRole": "admin", "quorum": 2},
        ),
    ]
)
CASES: dict[str, tuple[str | JsonObject, list[JsonObject]]] = {
    "approval accepted": ("conformance-approval", [ACCEPT]),
    "approval rejected": ("conformance-approval", [REJECT]),
    "approval refined": ("conformance-approval-refine", [REFINE, ACCEPT]),
    "clarification": ("conformance-clarification", [BLUE]),
    "external event": (
        "conformance-interrupt-external-event",
        [{"orderId": "fixture-order-1", "status": "completed"}],
    ),
    "quorum": (
        "conformance-interrupt-quorum",
        [ACCEPT | {"voter": voter} for voter in ("a", "b", "c")],
    ),
    "quorum rejected": (
        "conformance-interrupt-quorum",
        [REJECT | {"voter": voter} for voter in ("a", "b")],
    ),
    "governance": (
        GOVERNED,
        [{"decision": "granted", "voter": voter} for voter in ("a", "b")],
    ),
    "governance sent back": (
        GOVERNED,
        [
            {"decision": "rejected", "reason": "Not yet."},
            {"decision": "granted", "voter": "a"},
            {"decision": "granted", "voter": "b"},
        ],
    ),
    "decision ratified": ("conformance-agent-low-confidence", [ACCEPT]),
    "decision rejected": ("conformance-agent-low-confidence", [REJECT]),
    "decision replaced": ("conformance-agent-low-confidence", [{"decision": {"kind": "other"}}]),
    "supervisor ratified": ("conformance-orchestrator-low-confidence", [ACCEPT]),
    "confidence floor": ("conformance-multi-agent-confidence-escalation", [ACCEPT]),
    "conversation": (TALK, [SAY, CLOSE]),
    "timeout": (LATE, []),
}


def answered(wire: Wire, run_id: str, values: list[JsonObject]) -> None:
    """Answer the questions of a run in order, and wait for its end.

    The last answer is used for all further questions.
    """
    left = list(values)

    def answer(shown: JsonObject) -> None:
        if "interrupt" in shown and left:
            value = left.pop(0) if len(left) > 1 else left[0]
            path = f"/v1/runs/{run_id}/interrupts/{shown['interrupt']['nodeId']}"
            response = wire.post(path, {"resumeValue": value})
            assert response.status_code in (200, 404, 409), response.text

    until_ended(wire, run_id, answer)


def source_of(wire: Wire, case: str) -> str:
    definition, values = CASES[case]
    workflow_id = definition if isinstance(definition, str) else wire.register(definition)
    run_id = wire.create(workflow_id)
    answered(wire, run_id, values)
    return run_id


def resolved(log: list[JsonObject]) -> list[str]:
    """Return the keys of the answered waits in order."""
    return [
        event["payload"]["interruptId"].removeprefix("int-")
        for event in events_of(log, "interrupt.resolved")
    ]


def previewed(wire: Wire, run_id: str, start: int) -> JsonObject:
    body = {"mode": "branch", "fromSeq": start}
    response = wire.post(f"/v1/runs/{run_id}:fork", body, params={"dryRun": "true"})
    assert response.status_code == 200, response.text
    found: JsonObject = response.json()
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_branch_from_any_event_keeps_the_answers_named_in_its_preview(
    acme: Wire, case: str
) -> None:
    source = source_of(acme, case)
    original = acme.log(source)
    assert resolved(original)

    for start in range(len(original) + 1):
        kept = previewed(acme, source, start)["answersKept"]
        branch = fork(acme, source, "branch", fromSeq=start)
        answered(acme, branch, CASES[case][1][len(kept) :] or CASES[case][1][-1:])
        log = acme.log(branch)

        own = [event for event in log if event["sequence"] >= start]
        asked = [event["payload"]["key"] for event in events_of(own, "interrupt.requested")]
        assert kept == resolved(original[:start]), start
        assert not set(kept) & {*asked, *resolved(own)}, start
        assert len(set(resolved(log))) == len(resolved(log)), start
        assert acme.snapshot(branch)["status"] == acme.snapshot(source)["status"], start


@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in ("confidence floor", "supervisor ratified")]
)
def test_a_branch_from_within_an_answer_continues_like_its_source(acme: Wire, case: str) -> None:
    source = source_of(acme, case)
    original = acme.log(source)
    last = events_of(original, "interrupt.resolved")[-1]["sequence"]

    for start in range(last + 1, len(original) + 1):
        branch = forked(acme, source, "branch", fromSeq=start)

        told = [(event["type"], event["payload"]) for event in acme.log(branch)]
        assert told == [(event["type"], event["payload"]) for event in original], start


def test_a_copied_answer_cannot_be_given_again(acme: Wire) -> None:
    source = source_of(acme, "approval accepted")
    [answer] = events_of(acme.log(source), "interrupt.resolved")

    branch = fork(acme, source, "branch", fromSeq=answer["sequence"] + 1)
    response = acme.post(f"/v1/runs/{branch}/interrupts/gate", {"resumeValue": REJECT})

    assert response.status_code in (404, 409), response.text
    assert acme.finished(branch)["status"] == "completed"


def supervised_by_rules() -> JsonObject:
    nodes = [
        node("supervisor", SUPERVISOR, config={"rules": RULES}),
        node("dispatch", DISPATCH),
    ]
    return workflow(nodes, edges=LOOP)


def test_a_branch_from_any_event_carries_out_each_supervisor_decision_once(
    acme: Wire,
) -> None:
    source = acme.create(acme.register(supervised_by_rules()))
    acme.finished(source)

    for start in range(len(acme.log(source)) + 1):
        branch = forked(acme, source, "branch", fromSeq=start)
        log = acme.log(branch)

        assert decision_kinds(log) == ["next-worker", "terminate"], start
        started = {
            event["payload"]["childWorkflowId"] for event in events_of(log, "node.dispatched")
        }
        assert started == {"conformance-noop"}, start
        assert acme.snapshot(branch)["status"] == "completed", start


def test_a_branch_from_right_after_an_unsure_decision_asks_about_it(acme: Wire) -> None:
    source = source_of(acme, "confidence floor")
    decided = events_of(acme.log(source), "runOrchestrator.decided")[0]

    branch = fork(acme, source, "branch", fromSeq=decided["sequence"] + 1)
    answered(acme, branch, [ACCEPT])

    assert len(events_of(acme.log(branch), ESCALATED)) == 1
    assert decision_kinds(acme.log(branch)) == decision_kinds(acme.log(source))
