"""The fold of KAHN lines into the rows of a run and its agents.

It continues from the stored rows. The totals that a producer reports are stored next to those that
are counted from the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from wopr.kahn.events import (
    AgentEvent,
    AgentRunEnd,
    AgentRunStart,
    AgentTransition,
    AuditCheckpoint,
    KahnEvent,
    RunEnd,
    ToolInvocation,
)
from wopr.kahn.lifecycle import BLOCKED, INITIAL
from wopr.kahn.lines import compact
from wopr.kahn.timestamps import millis
from wopr.protocol.documents import JsonObject, Unset
from wopr.store.port.fleet import AgentRun, CheckpointResult, FleetRun, FleetRunKind, FleetRunSource

# The largest integer that every store can store; a producer may report a larger one.
_MAX_INTEGER: Final = 2**63 - 1
_STEPS: Final = (AgentTransition, ToolInvocation)
# The most frequent types first, because every line is tested.
_AGENT_EVENTS: Final = (*_STEPS, AuditCheckpoint, AgentRunStart, AgentRunEnd)
REPORTED_TOTALS: Final = (
    "total_steps",
    "total_tool_calls",
    "total_audit_checkpoints",
    "audits_passed",
    "audits_failed",
    "total_duration_s",
)
_RESULTS: Final = {"pass": "audits_passed", "fail": "audits_failed", "warn": "audits_warned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushContext:
    """The source of a push, its time by the host's clock, and a function that removes secrets.

    Secrets are removed from the texts of the views; the lines themselves are stored unchanged.
    """

    source: FleetRunSource = "push"
    at: int = 0
    redact: Callable[[str], str] = str


class AgentFold:
    """The fold of the lines of one agent in one run.

    It begins with the agent's first line that is not an audit: an audit names the auditor, which
    may not take part in the run.
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
        """Return an error if an event would rewrite the start or the end of the agent, or None."""
        name = event.agent_id
        is_started = bool(self._run.task) or "task" in self._changes
        if isinstance(event, AgentRunStart) and is_started:
            return f"{name} has already started: a second agent_run_start would rewrite the first"
        if isinstance(event, AgentRunEnd) and self._has_ended:
            return f"{name} has already ended: a second agent_run_end would rewrite the first"
        return None

    def take(self, event: AgentEvent) -> str | None:
        """Fold the agent's next line; return the error of an invalid line, or None."""
        if isinstance(event, _STEPS):
            if event.step < self._step:
                return f"step {event.step} of {event.agent_id} comes after step {self._step}"
            self._step = min(event.step, _MAX_INTEGER)
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
            # Adding 0.0 converts a negative zero.
            "duration_s": event.total_duration_s + 0.0,
            "score": None if isinstance(score, Unset) else score + 0.0,
            "blocked_at": None,
            "totals": compact(reported_totals(event) | counted_totals(self.change()[1])),
        }

    def change(self) -> tuple[AgentRun | None, AgentRun]:
        """Return the agent's row before the first line, and the row now."""
        run = self._run
        counts = {
            name: min(getattr(run, name) + more, _MAX_INTEGER)
            for name, more in self._counts.items()
        }
        changes = {
            **self._changes,
            **counts,
            "step": self._step,
            "last_event": max(run.last_event, millis(self._ts)),
        }
        return self._before, replace(run, **changes)


def reported_totals(end: AgentRunEnd) -> JsonObject:
    """Return the totals that a producer reports, by their names in the line."""
    return {name: getattr(end, name) for name in REPORTED_TOTALS}


def counted_totals(agent: AgentRun) -> JsonObject:
    """Return the totals of an agent's lines, by the same names with the prefix `counted_`."""
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
    """The fold of the lines of one run."""

    def __init__(
        self,
        run_id: str,
        push_context: PushContext,
        before: FleetRun | None = None,
        agents: Mapping[str, AgentRun] | None = None,
    ) -> None:
        self._run_id = run_id
        self._push_context = push_context
        self._before = before
        self._stored: dict[str, AgentRun] = dict(agents or {})
        self._agents: dict[str, AgentFold] = {}
        self._lines = 0 if before is None else before.lines
        self._first_ts = ""
        self._last_ts = ""
        self._kinds: set[FleetRunKind] = set() if before is None else {before.kind}
        self._end: RunEnd | None = None
        self.audits: list[CheckpointResult] = []

    def rewrite(self, event: KahnEvent) -> str | None:
        """Return an error if an event would rewrite an earlier line, or None."""
        if not isinstance(event, AgentRunStart | AgentRunEnd):
            return None
        agent = self._agents.get(event.agent_id) or self._agent_of(event)
        return None if agent is None else agent.rewrite(event)

    def take(self, event: KahnEvent) -> str | None:
        """Fold the next line; return the error of an invalid line, or None."""
        if isinstance(event, _AGENT_EVENTS):
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
        agent = self._agents.get(event.agent_id or "") or self._agent_of(event)
        if isinstance(event, AuditCheckpoint):
            self.audits.append(
                CheckpointResult(
                    line=self._lines,
                    at=millis(event.ts),
                    checkpoint_id=event.checkpoint_id,
                    result=event.result,
                )
            )
        return None if agent is None else agent.take(event)

    def _agent_of(self, event: AgentEvent) -> AgentFold | None:
        """Return the agent of a line; None for an audit of the run or by an agent outside the run."""
        agent_id = event.agent_id
        before = self._stored.get(agent_id or "")
        if agent_id is None or (before is None and isinstance(event, AuditCheckpoint)):
            return None
        agent = self._agents[agent_id] = AgentFold(before, event, self._push_context.redact)
        return agent

    @property
    def agents(self) -> tuple[tuple[AgentRun | None, AgentRun], ...]:
        """The rows of the agents with new lines, before and after these lines."""
        return tuple(agent.change() for agent in self._agents.values())

    @property
    def run(self) -> FleetRun:
        """The row of the run after at least one line."""
        before, end = self._before, self._end
        last = millis(self._last_ts)
        run = before or FleetRun(
            run_id=self._run_id,
            kind="agent",
            source=self._push_context.source,
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
            # The end of a graph ends the run. Without a graph the run ends with its last agent.
            ended_at=self._agents_ended_at() if outcome is None else ended_at,
            outcome=outcome,
            pushed_at=self._push_context.at,
        )

    def _agents_ended_at(self) -> int | None:
        """Return when the last agent ended; None if an agent is active or none has started."""
        now = {run.agent_id: run for _, run in self.agents}
        started = [agent for agent in (self._stored | now).values() if agent.task]
        ends = [agent.ended_at for agent in started if agent.ended_at is not None]
        return max(ends) if ends and len(ends) == len(started) else None
