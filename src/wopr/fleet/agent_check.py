"""What the checker remembers of one agent in one run, and what it says about its lines."""

from __future__ import annotations

from collections.abc import Iterator

from wopr.fleet.events import (
    AgentEvent,
    AgentRunEnd,
    AgentRunStart,
    AgentStatus,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    ToolInvocation,
)
from wopr.fleet.findings import Finding, finding
from wopr.fleet.lifecycle import INITIAL, TERMINAL, edge
from wopr.protocol.documents import UNSET


class AgentCheck:
    """Checks the lines of one `(run_id, agent_id)` in their order."""

    def __init__(self) -> None:
        self._is_started = False
        self._is_ended = False
        self._has_moved = False
        self._status: AgentStatus = INITIAL
        self._step = 0
        self._tool_calls = 0
        self._audits: dict[AuditResult, int] = {"pass": 0, "fail": 0, "warn": 0}

    def check(self, number: int, event: AgentEvent) -> Iterator[Finding]:
        """Check the next line of the agent."""
        yield from self._order(number, event)
        match event:
            case AgentTransition():
                yield from self._stepped(number, event.step)
                yield from self._moved(number, event)
            case ToolInvocation():
                yield from self._stepped(number, event.step)
                self._tool_calls += 1
                if event.ok and event.error is not UNSET:
                    yield finding(number, "error_on_ok", "a tool that is ok has an error")
            case AuditCheckpoint():
                self._audits[event.result] += 1
            case AgentRunEnd():
                yield from self._ended(number, event)
            case AgentRunStart():
                self._is_started = True

    def _order(self, number: int, event: AgentEvent) -> Iterator[Finding]:
        name = event.agent_id
        if isinstance(event, AgentRunStart):
            if self._is_started:
                yield finding(number, "second_start", f"{name} has started already")
        elif not self._is_started:
            yield finding(number, "not_started", f"{name} has not started")
        is_late = isinstance(event, AgentTransition | ToolInvocation | AgentRunEnd)
        if self._is_ended and is_late:
            yield finding(number, "after_end", f"{name} has ended already")

    def _stepped(self, number: int, step: int) -> Iterator[Finding]:
        if step < self._step:
            yield finding(number, "step_backwards", f"step {step} comes after step {self._step}")
        self._step = max(self._step, step)

    def _moved(self, number: int, event: AgentTransition) -> Iterator[Finding]:
        yield from self._departed(number, event.from_)
        pair = f"{event.from_} -> {event.to}"
        if event.from_ == event.to:
            yield finding(number, "self_transition", f"{pair} goes nowhere")
        elif event.from_ not in TERMINAL:
            match edge(event.from_, event.to):
                case "unlisted":
                    yield finding(number, "unlisted_transition", f"{pair} is not in the lifecycle")
                case "extension":
                    yield finding(number, "extension_transition", f"{pair} is an extension")
                case "drawn":
                    pass
        self._status = event.to

    def _departed(self, number: int, from_: AgentStatus) -> Iterator[Finding]:
        if not self._has_moved and from_ != INITIAL:
            message = f"the first transition is from {from_}, not from {INITIAL}"
            yield finding(number, "bad_first_from", message)
        elif self._has_moved and from_ != self._status:
            message = f"the transition is from {from_}, but the agent was {self._status}"
            yield finding(number, "discontinuous", message)
        ended_as = next((status for status in (from_, self._status) if status in TERMINAL), None)
        if ended_as is not None:
            yield finding(number, "after_terminal", f"a transition out of {ended_as}")
        self._has_moved = True

    def _ended(self, number: int, event: AgentRunEnd) -> Iterator[Finding]:
        told = {
            "total_tool_calls": (event.total_tool_calls, self._tool_calls),
            "total_audit_checkpoints": (event.total_audit_checkpoints, sum(self._audits.values())),
            "audits_passed": (event.audits_passed, self._audits["pass"]),
            "audits_failed": (event.audits_failed, self._audits["fail"]),
        }
        wrong = [
            f"{name} is {said}, the lines have {counted}"
            for name, (said, counted) in told.items()
            if said != counted
        ]
        if wrong:
            yield finding(number, "totals_mismatch", "; ".join(wrong))
        if (event.outcome == "converged") != (self._status == "converged"):
            message = f"the outcome is {event.outcome}, the last status {self._status}"
            yield finding(number, "outcome_status", message)
        self._is_ended = True
