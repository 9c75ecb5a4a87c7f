"""The lifecycle checker: reads a log line by line and reports findings (section 4).

It keeps one small record per agent and per CI run, so a log may have any length. Only a line that
violates its schema is not checked further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from wopr.kahn.events import (
    AgentEvent,
    AgentRunEnd,
    AgentRunStart,
    AgentStatus,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    CiEvent,
    NodeAttempt,
    NodeTransition,
    RunEnd,
    RunStart,
    ToolInvocation,
)
from wopr.kahn.lifecycle import INITIAL, TERMINAL, transition_kind
from wopr.kahn.lines import BadLine, KahnLine, condition_faults, decode_line, number_lines
from wopr.protocol.documents import UNSET, Unset

Level: TypeAlias = Literal["error", "warn", "info"]
FindingCode: TypeAlias = Literal[
    "schema",
    "not_started",
    "second_start",
    "bad_first_from",
    "discontinuous",
    "unlisted_transition",
    "extension_transition",
    "self_transition",
    "after_terminal",
    "step_backwards",
    "after_end",
    "totals_mismatch",
    "error_on_ok",
    "ci_order",
    "attempt_pairing",
    "ci_conditional",
    "outcome_status",
]
CODES: Final[tuple[FindingCode, ...]] = get_args(FindingCode)
_ERRORS: Final[frozenset[FindingCode]] = frozenset(
    {"schema", "after_terminal", "step_backwards", "after_end", "ci_conditional"}
)
LEVELS: Final[dict[FindingCode, Level]] = {
    code: "error" if code in _ERRORS else "info" if code == "extension_transition" else "warn"
    for code in CODES
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem in a line. Line numbers start at 1."""

    line: int
    code: FindingCode
    level: Level
    message: str


def finding(line: int, code: FindingCode, message: str) -> Finding:
    """Create a finding with the level of its code."""
    return Finding(line=line, code=code, level=LEVELS[code], message=message)


class AgentCheck:
    """Checks the lines of one agent in one run, in order."""

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
        yield from self._check_order(number, event)
        match event:
            case AgentTransition():
                yield from self._check_step(number, event.step)
                yield from self._check_transition(number, event)
            case ToolInvocation():
                yield from self._check_step(number, event.step)
                self._tool_calls += 1
                if event.ok and event.error is not UNSET:
                    yield finding(number, "error_on_ok", "error is present although ok is true")
            case AuditCheckpoint():
                self._audits[event.result] += 1
            case AgentRunEnd():
                yield from self._check_end(number, event)
            case AgentRunStart():
                self._is_started = True

    def _check_order(self, number: int, event: AgentEvent) -> Iterator[Finding]:
        name = event.agent_id
        if isinstance(event, AgentRunStart):
            if self._is_started:
                yield finding(number, "second_start", f"{name} has already started")
        elif not self._is_started:
            yield finding(number, "not_started", f"{name} has not started")
        is_late = isinstance(event, AgentTransition | ToolInvocation | AgentRunEnd)
        if self._is_ended and is_late:
            yield finding(number, "after_end", f"{name} has already ended")

    def _check_step(self, number: int, step: int) -> Iterator[Finding]:
        if step < self._step:
            yield finding(number, "step_backwards", f"step {step} comes after step {self._step}")
        self._step = max(self._step, step)

    def _check_transition(self, number: int, event: AgentTransition) -> Iterator[Finding]:
        yield from self._check_source(number, event.from_)
        pair = f"{event.from_} -> {event.to}"
        if event.from_ == event.to:
            yield finding(number, "self_transition", f"{pair} does not change the status")
        elif event.from_ not in TERMINAL:
            match transition_kind(event.from_, event.to):
                case "unlisted":
                    yield finding(number, "unlisted_transition", f"{pair} is not in the lifecycle")
                case "extension":
                    yield finding(number, "extension_transition", f"{pair} is an extension")
                case "listed":
                    pass
        self._status = event.to

    def _check_source(self, number: int, from_: AgentStatus) -> Iterator[Finding]:
        if not self._has_moved and from_ != INITIAL:
            message = f"the first transition is from {from_}, not from {INITIAL}"
            yield finding(number, "bad_first_from", message)
        elif self._has_moved and from_ != self._status:
            message = f"the transition is from {from_}, but the agent was {self._status}"
            yield finding(number, "discontinuous", message)
        ended_as = next((status for status in (from_, self._status) if status in TERMINAL), None)
        if ended_as is not None:
            yield finding(
                number, "after_terminal", f"a transition from the terminal status {ended_as}"
            )
        self._has_moved = True

    def _check_end(self, number: int, event: AgentRunEnd) -> Iterator[Finding]:
        reported = {
            "total_tool_calls": (event.total_tool_calls, self._tool_calls),
            "total_audit_checkpoints": (event.total_audit_checkpoints, sum(self._audits.values())),
            "audits_passed": (event.audits_passed, self._audits["pass"]),
            "audits_failed": (event.audits_failed, self._audits["fail"]),
        }
        wrong = [
            f"{name} is {reported_value}, the lines have {counted}"
            for name, (reported_value, counted) in reported.items()
            if reported_value != counted
        ]
        if wrong:
            yield finding(number, "totals_mismatch", "; ".join(wrong))
        if (event.outcome == "converged") != (self._status == "converged"):
            message = f"the outcome is {event.outcome}, the last status {self._status}"
            yield finding(number, "outcome_status", message)
        self._is_ended = True


class CiCheck:
    """Checks the lines of one CI run in order."""

    def __init__(self) -> None:
        self._is_begun = False
        self._is_ended = False
        # Attempts with one of their two lines: those that have begun by line number, and those that
        # have ended.
        self._running: dict[tuple[str, int], int] = {}
        self._attempted: set[tuple[str, int]] = set()

    def check(self, number: int, event: CiEvent) -> Iterator[Finding]:
        """Check the next line of the run."""
        yield from self._check_order(number, event)
        match event:
            case NodeTransition(to="running"):
                if not isinstance(event.attempt, Unset):
                    self._begin((event.node_id, event.attempt), number)
            case NodeAttempt():
                self._finish((event.node_id, event.attempt))
            case RunEnd():
                self._is_ended = True
                yield from self._check_pairs()
            case _:
                return

    def _check_order(self, number: int, event: CiEvent) -> Iterator[Finding]:
        if not self._is_begun and not isinstance(event, RunStart):
            yield finding(number, "ci_order", "the first line of the run is not run_start")
        if self._is_ended:
            yield finding(number, "ci_order", "a line after run_end")
        self._is_begun = True

    def _begin(self, attempt: tuple[str, int], number: int) -> None:
        if attempt in self._attempted:
            self._attempted.remove(attempt)
        else:
            self._running[attempt] = number

    def _finish(self, attempt: tuple[str, int]) -> None:
        if self._running.pop(attempt, None) is None:
            self._attempted.add(attempt)

    def _check_pairs(self) -> Iterator[Finding]:
        for (node_id, attempt), number in self._running.items():
            message = f"{node_id} began attempt {attempt}, but has no node_attempt for it"
            yield finding(number, "attempt_pairing", message)
        self._running.clear()


class Checker:
    """Checks one log. A later line may cause a finding about an earlier line."""

    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], AgentCheck] = {}
        self._ci_runs: dict[str, CiCheck] = {}

    def feed(self, number: int, raw: bytes) -> list[Finding]:
        """Check the next line, without its newline."""
        try:
            line = decode_line(raw)
        except BadLine as fault:
            return [finding(number, "schema", fault.message)]
        return list(self._check(number, line))

    def _check(self, number: int, line: KahnLine) -> Iterator[Finding]:
        event = line.event
        for fault in condition_faults(event):
            yield finding(number, "ci_conditional", fault)
        if isinstance(event, RunStart | NodeTransition | NodeAttempt | RunEnd):
            yield from self._ci_runs.setdefault(event.run_id, CiCheck()).check(number, event)
        elif isinstance(event, AuditCheckpoint) and event.agent_id is None:
            return
        else:
            agent = (event.run_id, event.agent_id or "")
            yield from self._agents.setdefault(agent, AgentCheck()).check(number, event)


def check(lines: Iterable[bytes]) -> Iterator[Finding]:
    """Check a whole log. Lines may end with a newline, and blank lines are skipped."""
    checker = Checker()
    for number, raw in number_lines(lines):
        yield from checker.feed(number, raw)
