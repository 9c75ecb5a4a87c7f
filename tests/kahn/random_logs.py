"""Random logs of runs with agents, in both dialects and partly with invalid events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

from wopr.protocol.documents import UNSET
from wopr.protocol.events import RunEvent

# Must never be in a line: texts of reasoning, decisions, contexts and annotations.
SECRET = "TOP-SECRET"
AGENTS = (
    "coder",
    "vendor.acme.support.tier1",
    "host:mock-agent:n1",
    "Vendor.Acme/Ünïcode",
    "a:b",
    "host.dotted",
    "core.system",
    "...",
    "x" * 200,
)
KINDS = (
    "low-confidence clarification approval conversation.exchange x-host-page external-event custom"
).split()
JUNK: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    -1,
    0,
    1e9,
    10**400,
    1e300,
    0.5,
    [],
    {},
    [None],
    {"agentId": 7},
)
ENDS = ("run.completed", "run.failed", "run.cancelled", "run.dead_lettered")
Payload = dict[str, Any]


@dataclass
class RandomLog:
    """A log, its later annotations, and its threshold."""

    events: list[RunEvent]
    annotations: list[Payload]
    threshold: float | None


@dataclass
class _Writer:
    chance: Random
    junk: float
    agents: list[str]
    run_id: str
    now: datetime = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    events: list[RunEvent] = field(default_factory=list[RunEvent])
    calls: list[str] = field(default_factory=list[str])

    def one(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def payload(self, *choices: Payload) -> Payload:
        return self.chance.choice(choices)

    def maybe(self, share: float = 0.5) -> bool:
        return self.chance.random() < share

    def agent(self) -> Payload:
        name = self.chance.choice(self.agents)
        return self.payload({"agentId": name}, {"agentId": name}, {"agent": {"agentId": name}}, {})

    def add(self, event_type: str, payload: Payload) -> None:
        if payload and self.maybe(self.junk):
            payload = {**payload, self.one(*payload): self.one(*JUNK)}
        self.now += timedelta(microseconds=self.chance.choice((0, 1, 999, 250_000, 3_000_500)))
        zone = self.one(UTC, timezone(timedelta(hours=5, minutes=30)))
        self.events.append(
            RunEvent(
                event_id=f"e{len(self.events)}",
                run_id=self.run_id,
                type=event_type,
                payload=payload if self.maybe(1 - self.junk / 10) else self.one(*JUNK),
                timestamp=self.now.astimezone(zone).isoformat(),
                sequence=len(self.events),
                node_id=self.one("n1", "n2", "n3", UNSET),
            )
        )


def random_log(chance: Random, *, junk: float = 0.05, most: int = 30) -> RandomLog:
    """Generate a log; its end is random too."""
    run_id = chance.choice(("run-1", "5f0e7a", "run.with/odd id", "_", "r" * 128))
    writer = _Writer(chance, junk, chance.sample(AGENTS, chance.randint(1, 3)), run_id)
    if writer.maybe(0.95):
        writer.add("run.started", _started(writer))
    for _ in range(chance.randint(0, most)):
        _STEPS[chance.choice(_WEIGHTED)](writer)
    if writer.maybe(0.8):
        writer.add(chance.choice(ENDS), _ended(writer))
        for _ in range(chance.randint(0, 2)):
            _STEPS[chance.choice(_WEIGHTED)](writer)
        if writer.maybe(0.2):
            writer.add(chance.choice(ENDS), _ended(writer))
    threshold = chance.choice((None, 0.0, 0.5, 0.7, 1.0))
    return RandomLog(writer.events, [_annotation(writer, n) for n in range(3)], threshold)


def _started(writer: _Writer) -> Payload:
    configurable = {"escalationThreshold": writer.one(0.2, 0.9, 2, "high", None)}
    plain = {"workflowId": "flow"}
    return writer.payload(plain, {**plain, "configurable": configurable})


def _ended(writer: _Writer) -> Payload:
    return writer.payload(
        {},
        {
            "error": {"code": "node_error", "message": SECRET},
            "failedNodeId": writer.one("n1", "n2"),
        },
        {"reason": SECRET, "nodeId": "n3"},
    )


def _node_started(writer: _Writer) -> None:
    writer.add("node.started", {"typeId": "t", **writer.agent()})


def _reasoned(writer: _Writer) -> None:
    writer.add("agent.reasoned", {**writer.agent(), "reasoning": SECRET})


def _delta(writer: _Writer) -> None:
    writer.add("agent.reasoning.delta", {**writer.agent(), "delta": SECRET, "sequence": 0})


def _tool_called(writer: _Writer) -> None:
    call_id = f"call-{len(writer.calls)}"
    writer.calls.append(call_id)
    tool = writer.one({"toolName": "grep"}, {"toolId": "openwop.echo:echo"}, {})
    given = writer.one(
        {"inputs": {"b": 1, "a": "ü"}}, {"arguments": "text"}, {"argsHash": "ab12"}, {}
    )
    writer.add("agent.toolCalled", {**writer.agent(), **tool, "callId": call_id, **given})


def _tool_returned(writer: _Writer) -> None:
    call_id = writer.one(*writer.calls[-3:], "never-called")
    ended = writer.one(
        {"outcome": {"durationMs": 12, "rows": [1]}},
        {"result": "x" * 5000, "durationMs": 1500},
        {"outcome": None, "status": "ok"},
        {"status": "error", "error": {"code": "boom", "message": "it broke"}},
        {"error": {"error": "boom", "message": "it broke"}},
        {"error": "text"},
        {"status": "forbidden"},
        {"status": "rate_limited", "durationMs": -4},
    )
    name = writer.one({"toolName": "grep"}, {})
    writer.add("agent.toolReturned", {**writer.agent(), **name, "callId": call_id, **ended})


def _handed_over(writer: _Writer) -> None:
    giver, receiver = writer.one(*writer.agents), writer.one(*writer.agents, "nobody.else")
    named = writer.one(
        {"fromAgentId": giver, "toAgentId": receiver},
        {"from": {"agentId": giver}, "to": {"agentId": receiver}},
        {},
    )
    writer.add("agent.handoff", {**named, "reason": SECRET, "context": {"text": SECRET}})


def _sureness(writer: _Writer) -> Payload:
    return writer.payload({}, {"confidence": writer.one(0, 0.3, 0.5, 0.7, 0.95, 1)})


def _decided(writer: _Writer) -> None:
    decision = {"decision": {"text": SECRET}, "reasoning": SECRET}
    writer.add("agent.decided", {**writer.agent(), **decision, **_sureness(writer)})


def _orchestrated(writer: _Writer) -> None:
    criteria = [
        {"key": writer.one("tests green", "Docs"), "met": writer.maybe()},
        writer.one({"met": True}, {"key": "k", "met": writer.maybe()}, None),
    ]
    decision = writer.one(
        {"kind": "next-worker", "nextWorkerIds": ["w"], **_sureness(writer)},
        {"kind": "ask-user", "prompt": SECRET},
        {"kind": "terminate", **_sureness(writer)},
        {"kind": "terminate", "successCriteria": criteria, **_sureness(writer)},
    )
    writer.add("runOrchestrator.decided", {**writer.agent(), "decision": decision})


def _verified(writer: _Writer) -> None:
    known = [event.event_id for event in writer.events]
    payload = {
        **writer.agent(),
        "target": writer.one(*known[-6:], *writer.calls[-2:], "nothing"),
        "verdict": writer.one("pass", "pass", "fail", "revise", "perhaps"),
        **writer.one({}, {"criteria": ["a", "b"]}),
        **_sureness(writer),
    }
    writer.add("agent.verified", payload)


def _suspended(writer: _Writer) -> None:
    kind = writer.one(*KINDS)
    said = writer.one({"kind": kind, "reason": SECRET}, {"reason": kind}, {"kind": kind})
    named = writer.one({}, writer.agent(), {"data": {"agentId": writer.one(*writer.agents)}})
    event_type = writer.one("node.suspended", "interrupt.requested", "clarification.requested")
    writer.add(event_type, {**said, **named, "decision": SECRET})


def _resumed(writer: _Writer) -> None:
    value = writer.one(
        {"resumeValue": {"ratified": True}},
        {"resumeValue": {"action": writer.one("accept", "approve", "reject", "refine")}},
        {"resumeValue": {"rejected": True}},
        {"resumeValue": {"decision": SECRET}},
        {"resumeValue": SECRET},
        {"answers": {"q": SECRET}},
        {"outcome": "rejected", "reason": "timeout"},
    )
    event_type = writer.one("node.resumed", "interrupt.resolved", "clarification.resolved")
    writer.add(event_type, {**value, **writer.one({}, {}, writer.agent())})


def _other(writer: _Writer) -> None:
    event_type, payload = writer.one(
        ("cap.breached", {"kind": "node-executions", "limit": 5, "observed": 6}),
        ("cap.breached", {}),
        ("eval.scored", {"taskId": "Task One!", "score": 0.5, "passed": True}),
        ("eval.scored", {"passed": False}),
        ("node.failed", {"error": {"code": "x", "message": SECRET}}),
        ("node.completed", {"outputs": {}}),
        ("node.retried", {"attempt": 1}),
        ("agent.invocation.started", {**writer.agent(), "resolvedModel": "large"}),
        ("agent.invocation.completed", {**writer.agent(), "outcome": "refused"}),
        ("agent.invocation.completed", {**writer.agent(), "outcome": "completed"}),
        ("agent.promptResolved", {**writer.agent(), "kind": "low-confidence"}),
        ("approval.requested", {"kind": "approval", **writer.agent()}),
        ("kahn.agent_transition", {"agent_id": "intruder", "step": 0}),
        ("log.appended", {"message": SECRET}),
    )
    writer.add(event_type, payload)


_STEPS: dict[str, Callable[[_Writer], None]] = {
    "started": _node_started,
    "reasoned": _reasoned,
    "delta": _delta,
    "called": _tool_called,
    "returned": _tool_returned,
    "handoff": _handed_over,
    "decided": _decided,
    "orchestrated": _orchestrated,
    "verified": _verified,
    "suspended": _suspended,
    "resumed": _resumed,
    "other": _other,
}
_WEIGHTED = [
    *_STEPS,
    *("called", "called", "returned", "returned", "decided", "suspended", "resumed", "started"),
]


def _annotation(writer: _Writer, number: int) -> Payload:
    event_ids = [event.event_id for event in writer.events]
    signal = writer.one(
        {"kind": "rating", "rating": writer.chance.randint(1, 5)},
        {"kind": "flag"},
        {"kind": "correction", "correction": SECRET},
        {"kind": "label", "label": writer.one("Good Work", "ünï", "")},
        {"kind": "wave"},
    )
    target = writer.one({}, {"eventId": writer.one(*event_ids, "gone")}, {"nodeId": "n1"})
    return {
        "annotationId": f"ann-{number}",
        "target": {"runId": writer.run_id, **target},
        "signal": signal,
        "actor": {"principalRef": "principal:alice"},
        "note": SECRET,
        "createdAt": f"2026-03-05T00:00:0{writer.chance.randint(0, 2)}.000Z",
    }
