"""One agent in the projection: its status, its lines and its outcome (14.3 and 14.5).

An agent converges only with a decision or a passed verification. A completed node is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from wopr.engine.escalation import DEFAULT_THRESHOLD, is_low_confidence
from wopr.kahn.bridge.facts import OperatorAnswer, to_checkpoint_id
from wopr.kahn.events import AgentStatus, AuditResult
from wopr.kahn.lifecycle import BLOCKED, INITIAL, shortest_path
from wopr.kahn.lines import encode_line
from wopr.kahn.timestamps import seconds_between
from wopr.protocol.documents import JsonObject
from wopr.protocol.resources.fleet import AgentOutcome

ActKind: TypeAlias = Literal["none", "other", "handoff", "decision"]

IMPLIED_REASON = "bridge:implied"
_OPERATOR_RESULTS: dict[OperatorAnswer, AuditResult] = {
    "ratified": "pass",
    "rejected": "fail",
    "overridden": "warn",
}


class EventLines:
    """The lines for one event of the log. All have the time, the id and the node of the event."""

    def __init__(
        self, ts: str, run_id: str, event_id: str = "", node_id: str | None = None
    ) -> None:
        self.ts = ts
        self.lines: list[bytes] = []
        self._run_id = run_id
        self._origin: JsonObject = {"openwop_event_id": event_id} if event_id else {}
        if node_id is not None:
            self._origin["openwop_node_id"] = node_id

    def link(self, interrupt_id: str | None) -> None:
        """Add the id of the interrupt in the inbox to the lines."""
        if interrupt_id is not None:
            self._origin["openwop_interrupt_id"] = interrupt_id

    def write(self, name: str, fields: JsonObject) -> None:
        """Add a line."""
        head = {"ts": self.ts, "run_id": self._run_id, "event": name}
        self.lines.append(encode_line({**head, **fields, **self._origin}))

    def audit(
        self, agent_id: str | None, checkpoint: str, result: AuditResult, evidence: JsonObject
    ) -> None:
        """Add the result of a checkpoint; without an agent the run was checked."""
        fields: JsonObject = {
            "agent_id": agent_id,
            "checkpoint_id": to_checkpoint_id(checkpoint),
            "result": result,
            "duration_s": 0.0,
        }
        if evidence:
            fields["evidence"] = evidence
        self.write("audit_checkpoint", fields)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that has not returned."""

    tool: str
    ts: str
    call_id: str | None = None
    input_summary: str | None = None


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """The result of a tool call, which succeeded if there is no error."""

    call: ToolCall
    duration_s: float
    error: str | None = None
    input_summary: str | None = None
    output_summary: str | None = None


@dataclass(slots=True)
class AgentState:
    """The state of an agent: status, decisions and audits."""

    agent_id: str
    started: str
    # Its name in the log, and the version that its node is pinned to.
    name: str = ""
    version: str | None = None
    # The confidence that its last decision needed.
    threshold: float = DEFAULT_THRESHOLD
    status: AgentStatus = INITIAL
    step: int = 0
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    last_act: ActKind = "none"
    has_decided: bool = False
    confidence: float | None = None
    is_ratified: bool = False
    is_overridden: bool = False
    needs_revision: bool = False
    is_forbidden: bool = False
    is_refused: bool = False
    # Whether its last decision was to ask the user, who has not answered yet.
    is_asking: bool = False
    verdicts_passed: int = 0
    verdicts_failed: int = 0
    criteria_met: int = 0
    criteria_unmet: int = 0
    tool_calls: int = 0
    audits: dict[AuditResult, int] = field(
        default_factory=lambda: {"pass": 0, "fail": 0, "warn": 0}
    )

    def is_confident(self) -> bool:
        """Return whether the confidence of the agent's last decision reaches the threshold."""
        confidence = self.confidence
        return confidence is not None and not is_low_confidence(confidence, self.threshold)

    def move_to(self, output: EventLines, to: AgentStatus, reason: str) -> None:
        """Change to a status by the shortest route. Only the last transition has the event's reason."""
        route = shortest_path(self.status, to)
        for following in route[:-1]:
            self.transition(output, following, IMPLIED_REASON)
        if route:
            self.transition(output, to, reason)

    def transition(self, output: EventLines, to: AgentStatus, reason: str | None) -> None:
        """Change the status. A step ends when the agent starts to think again."""
        fields: JsonObject = {
            "agent_id": self.agent_id,
            "step": self.step,
            "from": self.status,
            "to": to,
        }
        output.write("agent_transition", fields | ({} if reason is None else {"reason": reason}))
        self.status = to
        self.step += to == INITIAL

    def audit(
        self,
        output: EventLines,
        checkpoint: str,
        result: AuditResult,
        evidence: JsonObject | None = None,
    ) -> None:
        """Add the result of a checkpoint to the agent's lines and totals."""
        output.audit(self.agent_id, checkpoint, result, evidence or {})
        self.audits[result] += 1

    def write_tool_return(self, output: EventLines, returned: ToolReturn) -> None:
        """Add the line of a finished tool call."""
        fields: JsonObject = {
            "agent_id": self.agent_id,
            "step": self.step,
            "tool_name": returned.call.tool,
            "duration_s": returned.duration_s,
            "ok": returned.error is None,
        }
        texts = {
            "input_summary": returned.input_summary,
            "output_summary": returned.output_summary,
            "error": returned.error,
            "openwop_call_id": returned.call.call_id,
        }
        fields |= {name: value for name, value in texts.items() if value is not None}
        output.write("tool_invocation", fields)
        self.tool_calls += 1

    def abandon_calls(self, output: EventLines) -> None:
        """Add a line with an error for every call that has not returned."""
        for call in self.calls.values():
            duration = seconds_between(call.ts, output.ts)
            self.write_tool_return(
                output, ToolReturn(call, duration, "no_return", call.input_summary)
            )
        self.calls.clear()

    def decide(
        self, output: EventLines, reason: str, confidence: float | None, threshold: float
    ) -> None:
        """Respond and reflect. The decision replaces the last one and a person's judgment of it."""
        self.move_to(output, "response", reason)
        self.transition(output, "reflect", reason)
        self.last_act = "decision"
        self.has_decided = True
        self.confidence = confidence
        self.threshold = threshold
        self.is_ratified = self.is_overridden = self.needs_revision = self.is_asking = False
        if self.is_confident():
            self.is_forbidden = False

    def resume(self, output: EventLines, answer: OperatorAnswer) -> None:
        """Continue after a person's answer. An answer that judges the decision is also an audit."""
        if self.status != BLOCKED:
            return
        self.is_asking = False
        self.transition(output, INITIAL, f"operator:{answer}")
        if answer in _OPERATOR_RESULTS:
            self.audit(output, f"operator:{answer}", _OPERATOR_RESULTS[answer])
        self.is_ratified = self.is_ratified or answer == "ratified"
        self.is_overridden = self.is_overridden or answer == "overridden"


TERMINAL_TYPES: Final = frozenset(
    {"run.completed", "run.failed", "run.cancelled", "run.dead_lettered"}
)
_FAILURES: Final = frozenset({"run.failed", "run.dead_lettered"})
# The highest score of a run that did not converge.
_MAX_PARTIAL_SCORE: Final = 0.99


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The event that ended a run: its type, the error code, and the agent of the failed node."""

    type: str
    code: str | None = None
    failed_agent: AgentState | None = None

    @property
    def reason(self) -> str:
        """The reason in the last transition of an aborted agent."""
        has_code = self.type == "run.failed" and self.code is not None
        return f"{self.type}:{self.code}" if has_code else self.type


def end_agent(output: EventLines, agent: AgentState, ending: RunEnding) -> None:
    """Write an agent's last lines: open calls, the last transition and the end."""
    outcome = outcome_of(agent, ending)
    agent.abandon_calls(output)
    if outcome == "converged":
        agent.move_to(output, "converged", ending.type)
    elif outcome == "aborted":
        agent.transition(output, "failed", ending.reason)
    fields: JsonObject = {
        "agent_id": agent.agent_id,
        "outcome": outcome,
        "total_steps": agent.step + 1,
        "total_tool_calls": agent.tool_calls,
        "total_audit_checkpoints": sum(agent.audits.values()),
        "audits_passed": agent.audits["pass"],
        "audits_failed": agent.audits["fail"],
        "total_duration_s": seconds_between(agent.started, output.ts),
    }
    score = score_of(agent, outcome)
    output.write("agent_run_end", fields | ({} if score is None else {"convergence_score": score}))


def outcome_of(agent: AgentState, ending: RunEnding) -> AgentOutcome:
    """Return the outcome of an agent; the first matching rule decides."""
    if _is_aborted(agent, ending):
        return "aborted"
    if agent.is_forbidden or agent.is_refused:
        return "escaped"
    is_blocked = (
        agent.is_overridden
        or agent.needs_revision
        or agent.status == BLOCKED
        or len(agent.calls) > 0
    )
    has_reached = _has_settled(agent) or _is_verified(agent)
    return "converged" if has_reached and not is_blocked else "partial"


def _is_aborted(agent: AgentState, ending: RunEnding) -> bool:
    # The end of the run does not abort an agent that has handed off its task.
    if agent.last_act == "handoff":
        return False
    if ending.type == "run.cancelled":
        return True
    return ending.type in _FAILURES and (
        ending.failed_agent is agent
        or agent.status == BLOCKED
        or len(agent.calls) > 0
        or agent.last_act != "decision"
    )


def _has_settled(agent: AgentState) -> bool:
    is_confident = agent.confidence is None or agent.is_confident() or agent.is_ratified
    return agent.has_decided and is_confident


def _is_verified(agent: AgentState) -> bool:
    return agent.verdicts_passed > 0 and agent.verdicts_failed == 0


def score_of(agent: AgentState, outcome: AgentOutcome) -> float | None:
    """Return the convergence score: 1.0 if and only if the agent converged, None if it is unknown."""
    if outcome == "converged":
        return 1.0
    if outcome != "partial":
        return None
    score = _confidence_score(agent)
    passes = agent.verdicts_passed + agent.criteria_met
    fails = agent.verdicts_failed + agent.criteria_unmet
    if passes + fails:
        score = (1.0 if score is None else score) * passes / (passes + fails)
    return None if score is None else round(min(score, _MAX_PARTIAL_SCORE), 4)


def _confidence_score(agent: AgentState) -> float | None:
    if not agent.has_decided:
        return None
    if agent.is_ratified or agent.threshold == 0:
        return 1.0
    return None if agent.confidence is None else min(1.0, agent.confidence / agent.threshold)
