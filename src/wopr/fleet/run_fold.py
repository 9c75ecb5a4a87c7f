"""What lines make of a KAHN run and its agents: a fold that goes on where the store left off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from wopr.fleet.events import (
    AgentEvent,
    AgentRunEnd,
    AgentRunStart,
    AgentTransition,
    AuditCheckpoint,
    KahnEvent,
    NodeAttempt,
    NodeTransition,
    RunEnd,
    RunStart,
    ToolInvocation,
)
from wopr.fleet.instants import millis
from wopr.fleet.lifecycle import BLOCKED, INITIAL
from wopr.protocol.documents import Unset
from wopr.store.port.fleet import AgentRun, AuditRow, FleetRun, Kind, Source

# What every store can hold as a whole number; a producer may count further.
_MOST: Final = 2**63 - 1
_RESULTS: Final = {"pass": "audits_passed", "fail": "audits_failed", "warn": "audits_warned"}


class AgentFold:
    """One agent in one run, as its lines come in.

    It begins with the agent's first line that is not an audit: who signs an audit is the auditor,
    who need not be at work in that run.
    """

    def __init__(self, before: AgentRun | None, event: AgentEvent) -> None:
        self._before = before
        self._ts = event.ts
        first = millis(event.ts)
        self._run = before or AgentRun(
            run_id=event.run_id,
            agent_id=event.agent_id or "",
            started_at=first,
            last_event=first,
            status=INITIAL,
        )
        self._step = self._run.step
        self._changes: dict[str, object] = {}
        self._counts: dict[str, int] = {}

    def step_fault(self, event: AgentEvent) -> str | None:
        """Say what is wrong with a step that is lower than one before it."""
        if isinstance(event, AgentTransition | ToolInvocation) and event.step < self._step:
            return f"step {event.step} of {event.agent_id} comes after step {self._step}"
        return None

    def take(self, event: AgentEvent) -> None:
        """Take the agent's next line."""
        # Timestamps have one length, so the later is the greater.
        self._ts = max(self._ts, event.ts)
        match event:
            case AgentTransition():
                self._step = max(self._step, min(event.step, _MOST))
                self._move(event)
            case ToolInvocation():
                self._step = max(self._step, min(event.step, _MOST))
                self._count("tool_calls")
            case AuditCheckpoint():
                self._count(_RESULTS[event.result])
            case AgentRunStart():
                self._start(event)
            case AgentRunEnd():
                self._end(event)

    @property
    def _has_ended(self) -> bool:
        return self._run.ended_at is not None or "ended_at" in self._changes

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _move(self, event: AgentTransition) -> None:
        if not self._has_ended:
            is_blocked = event.to == BLOCKED
            self._changes["status"] = event.to
            self._changes["blocked_at"] = millis(event.ts) if is_blocked else None

    def _start(self, event: AgentRunStart) -> None:
        if not self._run.task and "task" not in self._changes:
            self._changes["task"] = event.task
            self._changes["model"] = None if isinstance(event.model, Unset) else event.model

    def _end(self, event: AgentRunEnd) -> None:
        if self._has_ended:
            return
        score = event.convergence_score
        self._changes |= {
            "ended_at": millis(event.ts),
            "outcome": event.outcome,
            # A negative zero would be written as one.
            "duration_s": event.total_duration_s + 0.0,
            "score": None if isinstance(score, Unset) else score + 0.0,
            "blocked_at": None,
        }

    def change(self) -> tuple[AgentRun | None, AgentRun]:
        """What the agent was before the first line, and what it is now."""
        run = self._run
        counted = {
            name: min(getattr(run, name) + more, _MOST) for name, more in self._counts.items()
        }
        changes = {
            **self._changes,
            **counted,
            "step": self._step,
            "last_event": max(run.last_event, millis(self._ts)),
        }
        return self._before, replace(run, **changes)


class RunFold:
    """One run, as its lines come in."""

    def __init__(
        self,
        run_id: str,
        source: Source,
        before: FleetRun | None = None,
        agents: Mapping[str, AgentRun] | None = None,
    ) -> None:
        self._run_id = run_id
        self._source: Source = source
        self._before = before
        self._held: Mapping[str, AgentRun] = agents or {}
        self._agents: dict[str, AgentFold] = {}
        self._lines = 0 if before is None else before.lines
        self._first_ts = ""
        self._last_ts = ""
        self._kinds: set[Kind] = set() if before is None else {before.kind}
        self._end: RunEnd | None = None
        self.audits: list[AuditRow] = []

    def take(self, event: KahnEvent) -> str | None:
        """Take the next line, or say why it cannot be taken."""
        match event:
            case RunStart() | NodeTransition() | NodeAttempt() | RunEnd():
                self._kinds.add("ci")
                if isinstance(event, RunEnd):
                    self._end = self._end or event
            case _:
                self._kinds.add("agent")
                fault = self._take_agent(event)
                if fault is not None:
                    return fault
        self._first_ts = self._first_ts or event.ts
        self._last_ts = max(self._last_ts, event.ts)
        self._lines += 1
        return None

    def _take_agent(self, event: AgentEvent) -> str | None:
        is_audit = isinstance(event, AuditCheckpoint)
        agent = self._agent(event, begins=not is_audit)
        fault = None if agent is None else agent.step_fault(event)
        if fault is not None:
            return fault
        if agent is not None:
            agent.take(event)
        if isinstance(event, AuditCheckpoint):
            self.audits.append(
                AuditRow(
                    line=self._lines,
                    at=millis(event.ts),
                    checkpoint_id=event.checkpoint_id,
                    result=event.result,
                )
            )
        return None

    def _agent(self, event: AgentEvent, *, begins: bool) -> AgentFold | None:
        agent_id = event.agent_id
        if agent_id is None:
            return None
        found = self._agents.get(agent_id)
        before = self._held.get(agent_id)
        if found is None and (begins or before is not None):
            found = self._agents[agent_id] = AgentFold(before, event)
        return found

    @property
    def agents(self) -> tuple[tuple[AgentRun | None, AgentRun], ...]:
        """The agents with new lines, as they were and as they are."""
        return tuple(agent.change() for agent in self._agents.values())

    @property
    def run(self) -> FleetRun:
        """The run as it is now; at least one line was taken."""
        before, end = self._before, self._end
        last = millis(self._last_ts)
        run = before or FleetRun(
            run_id=self._run_id,
            kind="agent",
            source=self._source,
            lines=0,
            started_at=millis(self._first_ts),
            last_event=last,
        )
        has_news = end is not None and run.ended_at is None
        return replace(
            run,
            kind=next(iter(self._kinds)) if len(self._kinds) == 1 else "mixed",
            lines=self._lines,
            last_event=max(run.last_event, last),
            ended_at=millis(end.ts) if end is not None and has_news else run.ended_at,
            outcome=end.outcome if end is not None and has_news else run.outcome,
        )
