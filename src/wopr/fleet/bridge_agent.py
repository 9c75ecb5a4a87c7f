"""One agent of a run as the bridge follows it, and the lines that its acts become (14.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wopr.fleet.bridge_facts import DEFAULT_THRESHOLD, Answer
from wopr.fleet.bridge_ids import to_checkpoint_id
from wopr.fleet.events import AgentStatus, AuditResult
from wopr.fleet.instants import seconds_between
from wopr.fleet.lifecycle import BLOCKED, INITIAL, path
from wopr.fleet.lines import encode_line
from wopr.protocol.documents import JsonObject

Act: TypeAlias = Literal["none", "other", "handoff", "decision"]

IMPLIED = "bridge:implied"
_OPERATOR_RESULTS: dict[Answer, AuditResult] = {
    "ratified": "pass",
    "rejected": "fail",
    "overridden": "warn",
}


class Page:
    """The lines that one event of the log causes; all carry its time, its id and its node."""

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
        """Say in every line what an operator would answer."""
        if interrupt_id is not None:
            self._origin["openwop_interrupt_id"] = interrupt_id

    def write(self, name: str, fields: JsonObject) -> None:
        """Add a line."""
        head = {"ts": self.ts, "run_id": self._run_id, "event": name}
        self.lines.append(encode_line({**head, **fields, **self._origin}))

    def audit(
        self, agent_id: str | None, checkpoint: str, result: AuditResult, evidence: JsonObject
    ) -> None:
        """Add the result of a check; without an agent it is about the run."""
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
class Call:
    """A tool call that has not returned."""

    tool: str
    ts: str
    call_id: str | None = None
    input_summary: str | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """How a tool call ended; without an error it went well."""

    call: Call
    duration_s: float
    error: str | None = None
    input_summary: str | None = None
    output_summary: str | None = None


@dataclass(slots=True)
class Agent:
    """Where an agent stands, what it decided, and what was said about its work."""

    agent_id: str
    started: str
    # Its name on the log, and the version that its node is pinned to.
    name: str = ""
    version: str | None = None
    # How sure it had to be of its last decision.
    threshold: float = DEFAULT_THRESHOLD
    status: AgentStatus = INITIAL
    step: int = 0
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    last_act: Act = "none"
    has_decided: bool = False
    confidence: float | None = None
    is_ratified: bool = False
    is_overridden: bool = False
    needs_revision: bool = False
    is_forbidden: bool = False
    is_refused: bool = False
    # Whether its last decision was to ask the user, who has not answered.
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
        """Tell whether the agent said of its last decision that it is sure enough."""
        return self.confidence is not None and self.confidence >= self.threshold

    def go(self, page: Page, to: AgentStatus, reason: str) -> None:
        """Reach a status by the shortest way; only the last hop is the event's own."""
        way = path(self.status, to)
        for following in way[:-1]:
            self.hop(page, following, IMPLIED)
        if way:
            self.hop(page, to, reason)

    def hop(self, page: Page, to: AgentStatus, reason: str | None) -> None:
        """Change the status; a step ends when the agent thinks anew."""
        fields: JsonObject = {
            "agent_id": self.agent_id,
            "step": self.step,
            "from": self.status,
            "to": to,
        }
        page.write("agent_transition", fields | ({} if reason is None else {"reason": reason}))
        self.status = to
        self.step += to == INITIAL

    def audit(
        self, page: Page, checkpoint: str, result: AuditResult, evidence: JsonObject | None = None
    ) -> None:
        """Put a check under the agent's name, and in its totals."""
        page.audit(self.agent_id, checkpoint, result, evidence or {})
        self.audits[result] += 1

    def tool_returned(self, page: Page, returned: Return) -> None:
        """Put a finished tool call on record."""
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
        page.write("tool_invocation", fields)
        self.tool_calls += 1

    def abandon_calls(self, page: Page) -> None:
        """Close every call that will not return any more."""
        for call in self.calls.values():
            lasted = seconds_between(call.ts, page.ts)
            self.tool_returned(page, Return(call, lasted, "no_return", call.input_summary))
        self.calls.clear()

    def decide(self, page: Page, reason: str, confidence: float | None, threshold: float) -> None:
        """Answer and reflect: a decision replaces the last one, and what was said about that."""
        self.go(page, "response", reason)
        self.hop(page, "reflect", reason)
        self.last_act = "decision"
        self.has_decided = True
        self.confidence = confidence
        self.threshold = threshold
        self.is_ratified = self.is_overridden = self.needs_revision = self.is_asking = False
        if self.is_confident():
            self.is_forbidden = False

    def resume(self, page: Page, answer: Answer) -> None:
        """Go on after a person's answer; a judgment of the decision is an audit too."""
        if self.status != BLOCKED:
            return
        self.is_asking = False
        self.hop(page, INITIAL, f"operator:{answer}")
        if answer in _OPERATOR_RESULTS:
            self.audit(page, f"operator:{answer}", _OPERATOR_RESULTS[answer])
        self.is_ratified = self.is_ratified or answer == "ratified"
        self.is_overridden = self.is_overridden or answer == "overridden"
