"""The statuses of an agent: which edges are drawn, which are tolerated, and the way between two."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Final, Literal, TypeAlias

from wopr.fleet.events import AgentStatus

Edge: TypeAlias = Literal["drawn", "extension", "unlisted"]

INITIAL: Final[AgentStatus] = "thinking"
BLOCKED: Final[AgentStatus] = "blocked-on-clarification"
TERMINAL: Final[frozenset[AgentStatus]] = frozenset({"converged", "failed"})
DRAWN: Final[dict[AgentStatus, tuple[AgentStatus, ...]]] = {
    "thinking": ("tool_call", BLOCKED, "failed"),
    "tool_call": ("tool_result",),
    "tool_result": ("response",),
    "response": ("reflect",),
    "reflect": ("thinking", "converged"),
    BLOCKED: ("thinking",),
    "converged": (),
    "failed": (),
}


def edge(from_: AgentStatus, to: AgentStatus) -> Edge:
    """Tell what the picture of the lifecycle says about a step from one status to another."""
    if to in DRAWN[from_]:
        return "drawn"
    answers_without_a_tool = from_ == "thinking" and to == "response"
    fails = to == "failed" and from_ not in TERMINAL
    return "extension" if answers_without_a_tool or fails else "unlisted"


@cache
def path(from_: AgentStatus, to: AgentStatus) -> tuple[AgentStatus, ...]:
    """Name the statuses after the first on the shortest way, which invents no tool call.

    The way leads over drawn edges and from `thinking` straight to `response`; no edge leads out of
    an end. Empty when the two are the same.
    """
    ways: deque[tuple[AgentStatus, ...]] = deque([(from_,)])
    seen = {from_}
    while ways:
        way = ways.popleft()
        if way[-1] == to:
            return way[1:]
        for following in _following(way[-1]):
            if following not in seen:
                seen.add(following)
                ways.append((*way, following))
    raise ValueError(f"no way leads from {from_} to {to}")


def _following(status: AgentStatus) -> tuple[AgentStatus, ...]:
    return (*DRAWN[status], "response") if status == "thinking" else DRAWN[status]
