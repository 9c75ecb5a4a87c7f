"""The summary of an agent run (section 6), derived from its lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from wopr.fleet.events import (
    AgentRunEnd,
    AgentRunStart,
    AgentStatus,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    KahnEvent,
    ToolInvocation,
)
from wopr.fleet.instants import seconds_between
from wopr.fleet.lifecycle import INITIAL
from wopr.protocol.documents import JsonObject, Unset

# What a reader says of an agent without an end; it is never written as an event.
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


def summarise(events: Iterable[KahnEvent]) -> JsonObject:
    """Sum up one run; an agent without an end has the outcome `unknown` and no `ended`.

    Only agents that started are in it. An empty run has an empty summary.
    """
    agents: dict[str, _Agent] = {}
    first: KahnEvent | None = None
    last_ts = ""
    for event in events:
        first = first or event
        last_ts = max(last_ts, event.ts)
        _take(agents, event)
    if first is None:
        return {}
    has_ended = bool(agents) and all(agent.end is not None for agent in agents.values())
    return {
        "run_id": first.run_id,
        "kind": "agent",
        "started": first.ts,
        **({"ended": last_ts} if has_ended else {}),
        "duration_s": seconds_between(first.ts, last_ts),
        "agents": [_summary(agent) for agent in agents.values()],
    }


def is_complete(summary: JsonObject) -> bool:
    """Tell whether every agent that started has ended: only then is a summary written down."""
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
    return {name: value for name, value in summary.items() if not _is_nothing(value)}


def _is_nothing(value: object) -> bool:
    return value is None or isinstance(value, Unset)
