"""One agent's run in the demo: a clock that chance moves, and the lines written on the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

from wopr.fleet.emitters import kahn_agent_emit as emit
from wopr.fleet.events import AgentOutcome, AgentStatus, AuditResult
from wopr.fleet.instants import seconds_between, write_ts
from wopr.fleet.lifecycle import BLOCKED, INITIAL
from wopr.fleet.lines import encode_line

_PARTIAL_SCORES = (0.35, 0.85)


class Session:
    """Plays one run; every call writes lines and lets time pass."""

    def __init__(self, run_id: str, agent_id: str, start: datetime, chance: Random) -> None:
        self.lines: list[bytes] = []
        self._run_id = run_id
        self._agent_id = agent_id
        self._now = start
        self._began = write_ts(start)
        self._chance = chance
        self._status: AgentStatus = INITIAL
        self._step = 0
        self._tool_calls = 0
        self._audits: list[AuditResult] = []

    def start(self, task: str, model: str) -> None:
        """Give the agent its task."""
        self._write(
            emit.agent_run_start(self._run_id, self._agent_id, task, model=model, ts=self._ts)
        )

    def turn(self, tools: Sequence[str]) -> None:
        """Think, call a tool, answer, reflect, and think anew."""
        tool = self._chance.choice(tools)
        self._move("tool_call", f"tool_call:{tool}")
        self._call(tool)
        for status in ("tool_result", "response", "reflect", INITIAL):
            self._move(status)

    def ask(self) -> None:
        """Stop until a person answers."""
        self._move(BLOCKED, "clarification")
        self._pass_time(60, 900)
        self._move(INITIAL, "operator:answered")

    def audit(self, checkpoint: str, outcome: AgentOutcome) -> None:
        """Check the work; what did not converge fails more often."""
        share = 0.05 if outcome == "converged" else 0.6
        draw = self._chance.random()
        result: AuditResult = "fail" if draw < share else "warn" if draw < share + 0.05 else "pass"
        lasted = self._pass_time(0.1, 3)
        self._audits.append(result)
        self._write(
            emit.audit_checkpoint(
                self._run_id,
                self._agent_id,
                checkpoint,
                result,
                lasted,
                evidence={"checked": self._chance.randint(1, 40)},
                ts=self._ts,
            )
        )

    def end(self, outcome: AgentOutcome) -> None:
        """End the run this way."""
        if outcome == "converged":
            for status in ("response", "reflect", "converged"):
                self._move(status)
        elif outcome == "aborted":
            self._move("failed", "timeout")
        self._write(
            emit.agent_run_end(
                self._run_id,
                self._agent_id,
                outcome,
                self._step + 1,
                self._tool_calls,
                len(self._audits),
                self._audits.count("pass"),
                self._audits.count("fail"),
                seconds_between(self._began, self._ts),
                convergence_score=self._score(outcome),
                ts=self._ts,
            )
        )

    def _score(self, outcome: AgentOutcome) -> float | None:
        if outcome == "converged":
            return 1.0
        return round(self._chance.uniform(*_PARTIAL_SCORES), 4) if outcome == "partial" else None

    def _call(self, tool: str) -> None:
        lasted = self._pass_time(0.2, 20)
        is_ok = self._chance.random() < 0.93
        self._tool_calls += 1
        self._write(
            emit.tool_invocation(
                self._run_id,
                self._agent_id,
                self._step,
                tool,
                lasted,
                is_ok,
                output_summary="done" if is_ok else None,
                error=None if is_ok else "exit status 1",
                ts=self._ts,
            )
        )

    def _move(self, to: AgentStatus, reason: str | None = None) -> None:
        self._pass_time(0.05, 8)
        step, from_ = self._step, self._status
        self._write(
            emit.agent_transition(
                self._run_id, self._agent_id, step, from_, to, reason=reason, ts=self._ts
            )
        )
        self._status = to
        self._step += to == INITIAL

    @property
    def _ts(self) -> str:
        return write_ts(self._now)

    def _pass_time(self, least: float, most: float) -> float:
        lasted = round(self._chance.uniform(least, most), 3)
        self._now += timedelta(seconds=lasted)
        return lasted

    def _write(self, event: dict[str, object]) -> None:
        self.lines.append(encode_line(event))
