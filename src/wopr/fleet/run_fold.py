"""What lines make of a KAHN run and its agents: a fold that goes on where the store left off.

The totals of an agent's end are kept as its producer reports them, beside what its lines count to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from wopr.fleet.events import (
    AgentEvent,
    AgentRunEnd,
    AgentRunStart,
    AgentTransition,
    AuditCheckpoint,
    KahnEvent,
    RunEnd,
    ToolInvocation,
)
from wopr.fleet.instants import millis
from wopr.fleet.lifecycle import BLOCKED, INITIAL
from wopr.fleet.lines import compact
from wopr.protocol.documents import JsonObject, Unset
from wopr.store.port.fleet import AgentRun, AuditRow, FleetRun, Kind, Source

# What every store can hold as a whole number; a producer may count further.
_MOST: Final = 2**63 - 1
_STEPS: Final = (AgentTransition, ToolInvocation)
# The most frequent first: a look at the type of each line adds up.
_OF_AGENTS: Final = (*_STEPS, AuditCheckpoint, AgentRunStart, AgentRunEnd)
REPORTED: Final = (
    "total_steps",
    "total_tool_calls",
    "total_audit_checkpoints",
    "audits_passed",
    "audits_failed",
    "total_duration_s",
)
_RESULTS: Final = {"pass": "audits_passed", "fail": "audits_failed", "warn": "audits_warned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How lines come in: who tells them, when by the host's clock, and what removes secrets.

    Secrets are removed from the texts that the views show; the lines are kept as they came.
    """

    source: Source = "push"
    at: int = 0
    redact: Callable[[str], str] = str


class AgentFold:
    """One agent in one run, as its lines come in.

    It begins with the agent's first line that is not an audit: who signs an audit is the auditor,
    who need not be at work in that run.
    """

    def __init__(
        self, before: AgentRun | None, event: AgentEvent, redact: Callable[[str], str]
    ) -> None:
        self._before = before
        self._redact = redact
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
        self._has_ended = self._run.ended_at is not None
        self._changes: dict[str, object] = {}
        self._counts: dict[str, int] = {}

    def rewrite(self, event: AgentEvent) -> str | None:
        """Say what an event would rewrite: an agent starts once and ends once."""
        name = event.agent_id
        is_started = bool(self._run.task) or "task" in self._changes
        if isinstance(event, AgentRunStart) and is_started:
            return f"{name} has started already: a second agent_run_start would rewrite the first"
        if isinstance(event, AgentRunEnd) and self._has_ended:
            return f"{name} has ended already: a second agent_run_end would rewrite the first"
        return None

    def take(self, event: AgentEvent) -> str | None:
        """Take the agent's next line, or say why it cannot be taken."""
        if isinstance(event, _STEPS):
            if event.step < self._step:
                return f"step {event.step} of {event.agent_id} comes after step {self._step}"
            self._step = min(event.step, _MOST)
        # Timestamps have one length, so the later is the greater.
        if event.ts > self._ts:
            self._ts = event.ts
        if isinstance(event, AgentTransition):
            self._move(event)
        elif isinstance(event, ToolInvocation):
            self._count("tool_calls")
        elif isinstance(event, AuditCheckpoint):
            self._count(_RESULTS[event.result])
        elif isinstance(event, AgentRunStart):
            self._start(event)
        else:
            self._end(event)
        return None

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _move(self, event: AgentTransition) -> None:
        if not self._has_ended:
            is_blocked = event.to == BLOCKED
            self._changes["status"] = event.to
            self._changes["blocked_at"] = millis(event.ts) if is_blocked else None

    def _start(self, event: AgentRunStart) -> None:
        model = event.model
        self._changes["task"] = self._redact(event.task)
        self._changes["model"] = None if isinstance(model, Unset) else self._redact(model)

    def _end(self, event: AgentRunEnd) -> None:
        self._has_ended = True
        score = event.convergence_score
        self._changes |= {
            "ended_at": millis(event.ts),
            "outcome": event.outcome,
            # A negative zero would be written as one.
            "duration_s": event.total_duration_s + 0.0,
            "score": None if isinstance(score, Unset) else score + 0.0,
            "blocked_at": None,
            "totals": compact(reported(event) | counted(self.change()[1])),
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


def reported(end: AgentRunEnd) -> JsonObject:
    """The totals that a producer reports, under their names on the wire."""
    return {name: getattr(end, name) for name in REPORTED}


def counted(agent: AgentRun) -> JsonObject:
    """What an agent's lines count to, under the same names with `counted_` in front."""
    audits = agent.audits_passed + agent.audits_failed + agent.audits_warned
    return {
        "counted_steps": agent.step + 1,
        "counted_tool_calls": agent.tool_calls,
        "counted_audit_checkpoints": audits,
        "counted_audits_passed": agent.audits_passed,
        "counted_audits_failed": agent.audits_failed,
        "counted_duration_s": max(0, agent.last_event - agent.started_at) / 1000,
    }


class RunFold:
    """One run, as its lines come in."""

    def __init__(
        self,
        run_id: str,
        arrival: Arrival,
        before: FleetRun | None = None,
        agents: Mapping[str, AgentRun] | None = None,
    ) -> None:
        self._run_id = run_id
        self._arrival = arrival
        self._before = before
        self._held: dict[str, AgentRun] = dict(agents or {})
        self._agents: dict[str, AgentFold] = {}
        self._lines = 0 if before is None else before.lines
        self._first_ts = ""
        self._last_ts = ""
        self._kinds: set[Kind] = set() if before is None else {before.kind}
        self._end: RunEnd | None = None
        self.audits: list[AuditRow] = []

    def rewrite(self, event: KahnEvent) -> str | None:
        """Say what an event would rewrite of the lines before it; None when it would nothing."""
        if not isinstance(event, AgentRunStart | AgentRunEnd):
            return None
        agent = self._agents.get(event.agent_id) or self._begun(event)
        return None if agent is None else agent.rewrite(event)

    def take(self, event: KahnEvent) -> str | None:
        """Take the next line, or say why it cannot be taken."""
        if isinstance(event, _OF_AGENTS):
            self._kinds.add("agent")
            fault = self._take_agent(event)
            if fault is not None:
                return fault
        else:
            self._kinds.add("ci")
            if isinstance(event, RunEnd) and self._end is None:
                self._end = event
        if event.ts > self._last_ts:
            self._last_ts = event.ts
        self._first_ts = self._first_ts or event.ts
        self._lines += 1
        return None

    def _take_agent(self, event: AgentEvent) -> str | None:
        agent = self._agents.get(event.agent_id or "") or self._begun(event)
        if isinstance(event, AuditCheckpoint):
            self.audits.append(
                AuditRow(
                    line=self._lines,
                    at=millis(event.ts),
                    checkpoint_id=event.checkpoint_id,
                    result=event.result,
                )
            )
        return None if agent is None else agent.take(event)

    def _begun(self, event: AgentEvent) -> AgentFold | None:
        """The agent of a line, unless that is a check of the run or of an agent not at work."""
        agent_id = event.agent_id
        before = self._held.get(agent_id or "")
        if agent_id is None or (before is None and isinstance(event, AuditCheckpoint)):
            return None
        agent = self._agents[agent_id] = AgentFold(before, event, self._arrival.redact)
        return agent

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
            source=self._arrival.source,
            lines=0,
            started_at=millis(self._first_ts),
            last_event=last,
        )
        is_graph_over = end is not None and run.outcome is None
        outcome = end.outcome if end is not None and is_graph_over else run.outcome
        ended_at = millis(end.ts) if end is not None and is_graph_over else run.ended_at
        return replace(
            run,
            kind=next(iter(self._kinds)) if len(self._kinds) == 1 else "mixed",
            lines=self._lines,
            last_event=max(run.last_event, last),
            # The end of a graph is the run's; otherwise a run ends with the last of its agents.
            ended_at=self._agents_ended_at() if outcome is None else ended_at,
            outcome=outcome,
            pushed_at=self._arrival.at,
        )

    def _agents_ended_at(self) -> int | None:
        """When the last agent ended; None while one that has started goes on, or none has started."""
        now = {run.agent_id: run for _, run in self.agents}
        started = [agent for agent in (self._held | now).values() if agent.task]
        ends = [agent.ended_at for agent in started if agent.ended_at is not None]
        return max(ends) if ends and len(ends) == len(started) else None
