"""The summary of a run (section 6), computed from its lines, in one form for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from wopr.kahn.events import (
    AgentRunEnd,
    AgentRunStart,
    AgentStatus,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    KahnEvent,
    NodeAttempt,
    NodeTransition,
    RunEnd,
    RunStart,
    ToolInvocation,
)
from wopr.kahn.lifecycle import INITIAL
from wopr.kahn.timestamps import seconds_between
from wopr.protocol.documents import UNSET, JsonObject, Unset

_CLEAN: Final = frozenset({"clean", "clean_with_flake"})
# The outcome that a reader shows for an agent without an end. It is never an event.
UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class _Agent:
    start: AgentRunStart
    end: AgentRunEnd | None = None
    last_status: AgentStatus = INITIAL
    last_ts: str = ""
    step: int = -1
    tool_calls: int = 0
    audits: dict[AuditResult, int] = field(
        default_factory=lambda: {"pass": 0, "fail": 0, "warn": 0}
    )


@dataclass(slots=True)
class _Graph:
    """The state of a run's graph from its CI lines."""

    start: RunStart | None = None
    end: RunEnd | None = None
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    statuses: dict[str, str] = field(default_factory=dict[str, str])
    flakes: int = 0
    lines: int = 0

    def take(self, event: KahnEvent) -> None:
        """Take the next line of the run."""
        match event:
            case RunStart():
                self.start = self.start or event
            case NodeTransition():
                self.statuses[event.node_id] = event.to
            case NodeAttempt():
                before = self.attempts.get(event.node_id, 0)
                self.attempts[event.node_id] = max(before, event.attempt)
                self.flakes += event.converged and event.attempt > 1
            case RunEnd():
                self.end = self.end or event
            case _:
                return
        self.lines += 1


def summarise(events: Iterable[KahnEvent]) -> JsonObject:
    """Return the summary of one run. A run with CI lines has the CI form, plus its agents if any.

    An agent without an end has the outcome `unknown` and no `ended`. Agents that did not start are
    left out. A run that has not ended has no `ended`. A run without lines has an empty summary.
    """
    agents: dict[str, _Agent] = {}
    graph = _Graph()
    first: KahnEvent | None = None
    last_ts = ""
    for event in events:
        first = first or event
        last_ts = max(last_ts, event.ts)
        graph.take(event)
        _take(agents, event)
    if first is None:
        return {}
    listed = [_summary(agent) for agent in agents.values()]
    if graph.lines:
        return _graph_summary(graph, first, last_ts) | ({"agents": listed} if listed else {})
    ends = [agent.end.ts for agent in agents.values() if agent.end is not None]
    has_ended = bool(ends) and len(ends) == len(agents)
    ended = max(ends) if has_ended else last_ts
    return {
        "run_id": first.run_id,
        "kind": "agent",
        "started": first.ts,
        **({"ended": ended} if has_ended else {}),
        "duration_s": seconds_between(first.ts, ended),
        "agents": listed,
    }


def _graph_summary(graph: _Graph, first: KahnEvent, last_ts: str) -> JsonObject:
    """Return the CI form of a summary. It includes an exit code of 0."""
    end = graph.end
    started = first.ts if graph.start is None else graph.start.ts
    summary: JsonObject = {"run_id": first.run_id, "started": started}
    if end is None:
        summary |= {"duration_s": seconds_between(started, last_ts), "outcome": UNKNOWN}
    else:
        summary |= {"ended": end.ts, "duration_s": end.total_duration_s, "outcome": end.outcome}
    counts = Counter(graph.statuses.values())
    summary["total_nodes"] = len(graph.statuses) if graph.start is None else graph.start.total_nodes
    for name in ("done", "failed", "blocked"):
        summary[name] = counts[name] if end is None else getattr(end, name)
    attempts = UNSET if end is None else end.total_attempts
    flakes = UNSET if end is None else end.flake_retries
    summary["total_attempts"] = _reported_or_counted(attempts, sum(graph.attempts.values()))
    summary["flake_retries"] = _reported_or_counted(flakes, graph.flakes)
    if end is not None:
        summary["exit_code"] = _reported_or_counted(
            end.exit_code, 0 if end.outcome in _CLEAN else 1
        )
    summary["failed_nodes"] = [n for n, status in graph.statuses.items() if status == "failed"]
    summary["node_attempts"] = graph.attempts
    return summary


def _reported_or_counted(reported: int | Unset, counted: int) -> int:
    return counted if isinstance(reported, Unset) else reported


def is_complete(summary: JsonObject) -> bool:
    """Return whether the run has ended, so that its summary is final."""
    return "ended" in summary


def _take(agents: dict[str, _Agent], event: KahnEvent) -> None:
    if isinstance(event, AgentRunStart):
        agents.setdefault(event.agent_id, _Agent(event))
    agent = agents.get(getattr(event, "agent_id", None) or "")
    if agent is None or agent.end is not None:
        return
    agent.last_ts = event.ts
    match event:
        case AgentTransition():
            agent.last_status = event.to
            agent.step = max(agent.step, event.step)
        case ToolInvocation():
            agent.tool_calls += 1
            agent.step = max(agent.step, event.step)
        case AuditCheckpoint():
            agent.audits[event.result] += 1
        case AgentRunEnd():
            agent.end = event
        case _:
            return


def _summary(agent: _Agent) -> JsonObject:
    end = agent.end
    summary: JsonObject = {
        "agent_id": agent.start.agent_id,
        "task": agent.start.task,
        "model": None if isinstance(agent.start.model, Unset) else agent.start.model,
        "outcome": UNKNOWN if end is None else end.outcome,
        "started": agent.start.ts,
        "ended": None if end is None else end.ts,
        "duration_s": (
            seconds_between(agent.start.ts, agent.last_ts) if end is None else end.total_duration_s
        ),
        "total_steps": agent.step + 1 if end is None else end.total_steps,
        "total_tool_calls": agent.tool_calls if end is None else end.total_tool_calls,
        "audits": agent.audits,
        "convergence_score": None if end is None else end.convergence_score,
        "last_status": agent.last_status,
    }
    return {name: value for name, value in summary.items() if not _is_missing(value)}


def _is_missing(value: object) -> bool:
    return value is None or isinstance(value, Unset)
