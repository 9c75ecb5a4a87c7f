"""Lines and logs with defaults for what a test does not care about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from wopr.kahn.bridge.projection import project
from wopr.kahn.checker import Finding, check
from wopr.kahn.lines import KahnLine, encode_line, read_line
from wopr.kahn.observed.run import LogRules
from wopr.protocol.documents import UNSET, JsonObject
from wopr.protocol.emitters import SWITCHES, required_capability
from wopr.protocol.events import EVENT_TYPES, RunEvent
from wopr.runs.append import Guard
from wopr.security.redact import Redactors
from wopr.store.port.audit import AuditDraft

TS = "2026-03-04T05:06:07.089Z"
AGENT = "coder"
END_OF_DEMO = datetime(2026, 3, 4, 12, tzinfo=UTC)

# One valid event of every variant, with all of its optional fields.
SAMPLES: dict[str, dict[str, Any]] = {
    "run_start": {"total_nodes": 3},
    "node_transition": {
        "node_id": "build",
        "from": "ready",
        "to": "running",
        "attempt": 1,
        "reason": "ready",
    },
    "node_attempt": {
        "node_id": "build",
        "attempt": 2,
        "duration_s": 1.5,
        "converged": False,
        "backoff_s": 2,
        "done_when_results": [
            {"cmd": "make", "rc": 2, "duration_s": 0.5, "tail": "no rule", "truncated": True}
        ],
    },
    "run_end": {
        "outcome": "stuck",
        "done": 1,
        "failed": 1,
        "blocked": 1,
        "total_duration_s": 9.25,
        "total_attempts": 7,
        "flake_retries": 1,
        "exit_code": 1,
    },
    "agent_run_start": {"agent_id": AGENT, "task": "fix it", "model": "large"},
    "agent_transition": {
        "agent_id": AGENT,
        "step": 0,
        "from": "thinking",
        "to": "tool_call",
        "reason": "tool_call:grep",
    },
    "tool_invocation": {
        "agent_id": AGENT,
        "step": 0,
        "tool_name": "grep",
        "duration_s": 0.25,
        "ok": False,
        "input_summary": "needle",
        "output_summary": "",
        "error": "no such file",
    },
    "audit_checkpoint": {
        "agent_id": AGENT,
        "checkpoint_id": "tests:unit",
        "result": "pass",
        "duration_s": 0.5,
        "evidence": {"passed": 12},
    },
    "agent_run_end": {
        "agent_id": AGENT,
        "outcome": "partial",
        "total_steps": 1,
        "total_tool_calls": 1,
        "total_audit_checkpoints": 1,
        "audits_passed": 1,
        "audits_failed": 0,
        "total_duration_s": 3.5,
        "convergence_score": 0.5,
    },
}
CI_VARIANTS = tuple(SAMPLES)[:4]
AGENT_VARIANTS = tuple(SAMPLES)[4:]


def fields(name: str, **changed: Any) -> dict[str, Any]:
    """Return a valid event of a variant with changed fields; `UNSET` removes one."""
    event = {"ts": TS, "run_id": "r-1", "event": name, **SAMPLES[name], **changed}
    return {key: value for key, value in event.items() if value is not UNSET}


def line(name: str, **changed: Any) -> bytes:
    return encode_line(fields(name, **changed))


def move(step: int, from_: str, to: str, agent_id: str = AGENT, **more: Any) -> bytes:
    changed = {"agent_id": agent_id, "step": step, "from": from_, "to": to, **more}
    return line("agent_transition", **changed)


def findings(lines: Iterable[bytes]) -> list[tuple[int, str]]:
    return [(found.line, found.code) for found in check(lines)]


def errors_and_warnings(lines: Iterable[bytes]) -> list[Finding]:
    """Return the findings of the checker above remarks."""
    return [found for found in check(lines) if found.level != "info"]


def read(lines: Iterable[bytes]) -> list[KahnLine]:
    return [read_line(each) for each in lines]


class Log:
    """Build a run's log; each event is a millisecond after the previous one."""

    def __init__(self, run_id: str = "run-1", **started: Any) -> None:
        self.events: list[RunEvent] = []
        self._run_id = run_id
        self.add("run.started", None, workflowId="flow", **started)

    def add(self, event_type: str, node_id: str | None = "n1", /, **payload: Any) -> str:
        """Append an event and return its id."""
        sequence = len(self.events)
        event = RunEvent(
            event_id=f"e{sequence}",
            run_id=self._run_id,
            type=event_type,
            payload=payload,
            timestamp=f"2026-03-04T05:06:{sequence // 1000:02d}.{sequence % 1000:03d}Z",
            sequence=sequence,
            node_id=UNSET if node_id is None else node_id,
        )
        self.events.append(event)
        return event.event_id

    def lines(self, threshold: float | None = None, **more: Any) -> list[dict[str, Any]]:
        return [json.loads(each) for each in project(self.events, threshold, **more)]

    def projected_lines(self, threshold: float | None = None) -> list[str]:
        """Return the projection in the short form of the contract's examples."""
        return [tell(each) for each in self.lines(threshold)]

    def end(self, agent_id: str | None = None) -> dict[str, Any]:
        """Return the end of the last agent, or of this one."""
        ends = [each for each in self.lines() if each["event"] == "agent_run_end"]
        return next(e for e in reversed(ends) if agent_id in (None, e["agent_id"]))


def tell(event: dict[str, Any]) -> str:
    match event["event"]:
        case "agent_transition":
            reason = f" {event['reason']}" if "reason" in event else ""
            return f"{event['step']} {event['from']}>{event['to']}{reason}"
        case "tool_invocation":
            ended = "ok" if event["ok"] else event["error"]
            return f"tool_invocation step {event['step']} {ended}"
        case "audit_checkpoint":
            return f"audit_checkpoint {event['checkpoint_id']} {event['result']}"
        case "agent_run_end":
            return _tell_end(event)
        case name:
            return str(name)


def _tell_end(event: dict[str, Any]) -> str:
    counts: Sequence[tuple[str, str]] = (
        ("steps", "total_steps"),
        ("tools", "total_tool_calls"),
        ("audits", "total_audit_checkpoints"),
        ("passed", "audits_passed"),
        ("failed", "audits_failed"),
    )
    score = event.get("convergence_score", "-")
    totals = " ".join(f"{short}={event[name]}" for short, name in counts)
    return f"agent_run_end {event['outcome']} {score} {totals}"


ACME = {"agentId": "vendor.acme.one"}
OTHER = {"agentId": "vendor.acme.two"}


def agent_log(**started: Any) -> Log:
    log = Log(**started)
    log.add("node.started", typeId="t", agent=ACME)
    return log


def low_confidence_log(resume: dict[str, Any]) -> Log:
    log = agent_log()
    log.add("agent.decided", **ACME, decision={}, confidence=0.5)
    log.add("node.suspended", interruptId="i", kind="low-confidence", **ACME)
    log.add("interrupt.requested", kind="low-confidence", key="k", data=ACME)
    log.add("interrupt.resolved", interruptId="i", resumeValue=resume)
    log.add("node.resumed", interruptId="i", resumeValue=resume)
    log.add("run.completed", None)
    return log


def log_rules(*silent: str) -> LogRules:
    """Return the rules of a host that advertises all other event types and audits annotations."""
    discovery: JsonObject = {}
    for event_type in EVENT_TYPES:
        path = required_capability(event_type)
        if path is not None and event_type not in silent:
            *families, flag = path.split(".")
            place = discovery
            for family in families:
                place = place.setdefault(family, {})
            place[flag] = True
    for event_type in silent:
        family, flag = SWITCHES[event_type].split(".")
        discovery[family][flag] = False
    return LogRules(
        guard=Guard(discovery),
        redactors=Redactors(),
        audit=lambda tenant, annotation: AuditDraft(
            tenant=tenant, link=lambda sequence, previous: b"{}"
        ),
    )
