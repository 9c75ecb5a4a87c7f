"""Payloads of agent events: reasoning, tool calls, decisions and handoffs."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, Document, Json, Millis, NonEmpty, Unset
from wopr.protocol.events.values import (
    Count,
    DistinctWords,
    EventError,
    Ratio,
    require_distinct,
)

Verbosity: TypeAlias = Literal["summary", "full", "off"]


class AgentReasoned(Document, frozen=True, kw_only=True):
    """A complete block of reasoning."""

    agent_id: AgentId
    reasoning: str
    verbosity: Verbosity | Unset = UNSET
    token_count: Count | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class AgentReasoningDelta(Document, frozen=True, kw_only=True):
    """A piece of a block of reasoning. `sequence` counts from 0 within the block."""

    agent_id: AgentId
    delta: str
    sequence: Count
    verbosity: Verbosity | Unset = UNSET


class AgentToolCalled(Document, frozen=True, kw_only=True):
    """A tool is about to be called."""

    agent_id: AgentId
    tool_name: NonEmpty
    call_id: NonEmpty
    inputs: Json | Unset = UNSET
    args_hash: str | Unset = UNSET
    principal: str | Unset = UNSET
    transport: Literal["mcp", "http", "native"] | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class AgentToolReturned(Document, frozen=True, kw_only=True):
    """A tool returned a result, or the call was refused."""

    agent_id: AgentId
    tool_name: NonEmpty
    call_id: NonEmpty
    outcome: Json | Unset = UNSET
    error: EventError | Unset = UNSET
    status: Literal["ok", "error", "forbidden", "rate_limited"] | Unset = UNSET
    duration_ms: Millis | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET

    def __post_init__(self) -> None:
        if self.outcome is not UNSET and self.error is not UNSET:
            raise ValueError("a tool returns outcome or error, not both")


class AgentHandoff(Document, frozen=True, kw_only=True):
    """Control moved from one agent to another."""

    from_agent_id: AgentId
    to_agent_id: AgentId
    reason: str | Unset = UNSET
    context: Json | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class AgentDecided(Document, frozen=True, kw_only=True):
    """An agent decided. A decision with a confidence below the threshold waits for a person."""

    agent_id: AgentId
    decision: Json
    confidence: Ratio | Unset = UNSET
    reasoning: str | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET


class AgentVerified(Closed, frozen=True, kw_only=True):
    """The verification of a decision, a child run or a call, without its content."""

    agent_id: AgentId
    target: NonEmpty
    verdict: Literal["pass", "fail", "revise"]
    criteria: DistinctWords | Unset = UNSET
    confidence: Ratio | Unset = UNSET
    causation_host_id: NonEmpty | Unset = UNSET

    def __post_init__(self) -> None:
        require_distinct("criteria", self.criteria)


class AgentInvocationStarted(Document, frozen=True, kw_only=True):
    """An agent was invoked. A replay repeats the resolved fields."""

    invocation_id: NonEmpty
    agent_id: NonEmpty
    source: Literal["workflow-node", "run-api", "chat-mention"]
    model_class: str | Unset = UNSET
    resolved_model: str | Unset = UNSET
    resolved_provider: str | Unset = UNSET
    resolved_agent_version: str | Unset = UNSET
    resolved_channel: str | Unset = UNSET
    tool_surface_count: Count | Unset = UNSET
    memory_bound: bool | Unset = UNSET


class AgentInvocationCompleted(Document, frozen=True, kw_only=True):
    """The invocation of an agent ended."""

    invocation_id: NonEmpty
    agent_id: NonEmpty
    outcome: Literal["completed", "handed-off", "escalated", "refused", "failed"]
    schema_validated: bool | Unset = UNSET
    confidence: Ratio | Unset = UNSET
    enqueued_run_id: NonEmpty | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "agent.reasoned": AgentReasoned,
    "agent.reasoning.delta": AgentReasoningDelta,
    "agent.toolCalled": AgentToolCalled,
    "agent.toolReturned": AgentToolReturned,
    "agent.handoff": AgentHandoff,
    "agent.decided": AgentDecided,
    "agent.verified": AgentVerified,
    "agent.invocation.started": AgentInvocationStarted,
    "agent.invocation.completed": AgentInvocationCompleted,
}
