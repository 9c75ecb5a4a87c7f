"""The statuses of an agent, the allowed transitions, and the shortest path between two statuses."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Final, Literal, TypeAlias

from wopr.kahn.events import AgentStatus

TransitionKind: TypeAlias = Literal["listed", "extension", "unlisted"]

INITIAL: Final[AgentStatus] = "thinking"
BLOCKED: Final[AgentStatus] = "blocked-on-clarification"
TERMINAL: Final[frozenset[AgentStatus]] = frozenset({"converged", "failed"})
LIFECYCLE: Final[dict[AgentStatus, tuple[AgentStatus, ...]]] = {
    "thinking": ("tool_call", BLOCKED, "failed"),
    "tool_call": ("tool_result",),
    "tool_result": ("response",),
    "response": ("reflect",),
    "reflect": ("thinking", "converged"),
    BLOCKED: ("thinking",),
    "converged": (),
    "failed": (),
}


def transition_kind(from_: AgentStatus, to: AgentStatus) -> TransitionKind:
    """Return whether a transition is listed in the lifecycle, an extension, or neither."""
    if to in LIFECYCLE[from_]:
        return "listed"
    responds_without_tool = from_ == "thinking" and to == "response"
    fails = to == "failed" and from_ not in TERMINAL
    return "extension" if responds_without_tool or fails else "unlisted"


@cache
def shortest_path(from_: AgentStatus, to: AgentStatus) -> tuple[AgentStatus, ...]:
    """Return the statuses after the first on the shortest path between two statuses.

    The path uses listed transitions, and the extension from `thinking` to `response`, so that it
    contains no tool call that did not happen. It is empty if both statuses are the same.
    """
    candidates: deque[tuple[AgentStatus, ...]] = deque([(from_,)])
    seen = {from_}
    while candidates:
        statuses = candidates.popleft()
        if statuses[-1] == to:
            return statuses[1:]
        for following in _next_statuses(statuses[-1]):
            if following not in seen:
                seen.add(following)
                candidates.append((*statuses, following))
    raise ValueError(f"there is no path from {from_} to {to}")


def _next_statuses(status: AgentStatus) -> tuple[AgentStatus, ...]:
    return (*LIFECYCLE[status], "response") if status == "thinking" else LIFECYCLE[status]
