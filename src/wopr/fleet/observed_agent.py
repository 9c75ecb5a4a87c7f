"""One agent of an observed run, and the standard events that its lines stand for (14.7)."""

from __future__ import annotations

from typing import Final

from wopr.fleet.drafts import Batch
from wopr.fleet.events import (
    AgentOutcome,
    AgentRunEnd,
    AgentRunStart,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    Envelope,
    ToolInvocation,
)
from wopr.fleet.lifecycle import BLOCKED
from wopr.protocol.documents import Json, JsonObject, Unset

TYPE_ID: Final = "vendor.kahn.agent"
# What an agent is called here that has no name of its own among the host's.
AGENT_PREFIX: Final = "host:kahn:"
_VERDICTS: Final[dict[AuditResult, str]] = {"pass": "pass", "fail": "fail", "warn": "revise"}


class ObservedAgent:
    """Knows what the agent is called in the run's log, and what is open."""

    def __init__(self, run_id: str, agent_id: str, openwop_agent_id: Json) -> None:
        self.outcome: AgentOutcome | None = None
        self._run_id = run_id
        self._node_id = agent_id
        is_name = isinstance(openwop_agent_id, str) and 3 <= len(openwop_agent_id) <= 256
        self._agent_id = openwop_agent_id if is_name else f"{AGENT_PREFIX}{agent_id}"
        self._is_started = False
        self._has_failed = False
        self._pauses = 0
        self._calls = 0

    def derive(self, batch: Batch, event: Envelope) -> None:
        """Add the standard events of a line; after the agent's end only a check has one."""
        if self.outcome is not None and not isinstance(event, AuditCheckpoint):
            return
        match event:
            case AgentRunStart():
                self._start(batch)
            case AgentTransition():
                self._move(batch, event)
            case ToolInvocation():
                self._call(batch, event)
            case AuditCheckpoint():
                payload = {
                    "agentId": self._agent_id,
                    "target": event.checkpoint_id,
                    "verdict": _VERDICTS[event.result],
                    "criteria": [event.checkpoint_id],
                }
                batch.add("agent.verified", payload, self._node_id)
            case AgentRunEnd():
                self._end(batch, event)
            case _:
                return

    def _start(self, batch: Batch) -> None:
        if self._is_started:
            return
        self._is_started = True
        payload = {
            "nodeId": self._node_id,
            "typeId": TYPE_ID,
            "agent": {"agentId": self._agent_id},
        }
        batch.add("node.started", payload, self._node_id)

    def _move(self, batch: Batch, event: AgentTransition) -> None:
        reason = "" if isinstance(event.reason, Unset) else event.reason
        if event.to == "thinking" and event.from_ == BLOCKED:
            payload: JsonObject = {"nodeId": self._node_id, "interruptId": f"int-{self._key()}"}
            batch.add("node.resumed", payload, self._node_id)
        elif event.to == "thinking":
            payload = {"agentId": self._agent_id, "reasoning": reason, "verbosity": "summary"}
            batch.add("agent.reasoned", payload, self._node_id)
        elif event.to == BLOCKED:
            self._pauses += 1
            payload = {
                "nodeId": self._node_id,
                "kind": "clarification",
                "interruptId": f"int-{self._key()}",
                "key": self._key(),
            }
            batch.add("node.suspended", payload, self._node_id)
        elif event.to == "failed":
            self._has_failed = True
            error = {"code": "agent_failed", "message": reason or "the agent failed"}
            batch.add("node.failed", {"nodeId": self._node_id, "error": error}, self._node_id)

    def _key(self) -> str:
        return f"{self._run_id}:{self._node_id}:{self._pauses}"

    def _call(self, batch: Batch, event: ToolInvocation) -> None:
        self._calls += 1
        call: JsonObject = {
            "agentId": self._agent_id,
            "toolName": event.tool_name,
            "callId": f"call-{self._node_id}-{self._calls}",
        }
        inputs = {} if isinstance(event.input_summary, Unset) else {"inputs": event.input_summary}
        cause = batch.add("agent.toolCalled", call | inputs, self._node_id)
        returned = call | {
            "status": "ok" if event.ok else "error",
            "durationMs": round(event.duration_s * 1000),
        }
        batch.add("agent.toolReturned", returned | _result(event), self._node_id, cause)

    def _end(self, batch: Batch, event: AgentRunEnd) -> None:
        self.outcome = event.outcome
        decision: JsonObject = {
            "outcome": event.outcome,
            "totals": {
                "steps": event.total_steps,
                "toolCalls": event.total_tool_calls,
                "auditCheckpoints": event.total_audit_checkpoints,
                "auditsPassed": event.audits_passed,
                "auditsFailed": event.audits_failed,
                "durationS": event.total_duration_s,
            },
        }
        if not isinstance(event.convergence_score, Unset):
            decision["convergenceScore"] = event.convergence_score
        # Without a confidence: a low one would oblige the host to ask a person.
        decided = {"agentId": self._agent_id, "decision": decision}
        batch.add("agent.decided", decided, self._node_id)
        if not self._has_failed:
            batch.add("node.completed", {"nodeId": self._node_id}, self._node_id)


def _result(event: ToolInvocation) -> JsonObject:
    """A tool returns an outcome or an error, and never both."""
    if not event.ok and not isinstance(event.error, Unset):
        return {"error": {"code": "tool_error", "message": event.error or "the tool failed"}}
    if isinstance(event.output_summary, Unset):
        return {}
    return {"outcome": event.output_summary}
