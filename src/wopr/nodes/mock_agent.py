"""`core.conformance.mock-agent`: an agent that says and does what its config tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import members_of, node
from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset

_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
STUB_REASONING = "The mock agent was told to reason and not what to say."


class MockReasoning(Closed, frozen=True, kw_only=True):
    """What the agent thinks."""

    summary: str
    trace: str | Unset = UNSET
    token_count: _Count | Unset = UNSET
    stream_chunks: list[str] = []


class MockError(Closed, frozen=True, kw_only=True):
    """A tool's error, in the form of the error envelope."""

    error: NonEmpty
    message: NonEmpty
    details: JsonObject | Unset = UNSET


class MockToolCall(Closed, frozen=True, kw_only=True):
    """A tool call with its scripted end: a result or an error, and never both."""

    tool_id: NonEmpty
    arguments: Json | Unset = UNSET
    result: Json | Unset = UNSET
    error: MockError | Unset = UNSET
    duration_ms: _Count | Unset = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.result, Unset) == isinstance(self.error, Unset):
            raise ValueError(f"tool call {self.tool_id} needs result or error, and not both")


class MockHandoff(Closed, frozen=True, kw_only=True):
    """To whom the agent hands over."""

    to_agent_id: AgentId
    reason: str | Unset = UNSET
    context: Json | Unset = UNSET


class MockDecision(Closed, frozen=True, kw_only=True):
    """What the agent decides, and how sure it is."""

    decision: Json
    confidence: _Ratio | Unset = UNSET
    reasoning: str | Unset = UNSET


class MockAgentConfig(Closed, frozen=True, kw_only=True):
    """The whole script; an empty one does nothing.

    `mockConfidence` counts only where `mockDecision` is absent.
    """

    agent_id: AgentId | Unset = UNSET
    mock_reasoning: bool | MockReasoning = False
    mock_tool_calls: list[MockToolCall] = []
    mock_handoff: MockHandoff | Unset = UNSET
    mock_decision: MockDecision | Unset = UNSET
    mock_confidence: _Ratio | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name every tool call without an end, and every one with two; `null` is a result."""
        for index, call in enumerate(members_of(config, "mockToolCalls")):
            if "result" in call and "error" in call:
                yield f"mockToolCalls.{index}", "a tool call has a result or an error, and not both"
            elif "result" not in call and "error" not in call:
                yield f"mockToolCalls.{index}", "a tool call needs a result or an error"


@node("core.conformance.mock-agent", conformance_only=True)
def mock_agent(ctx: NodeContext, config: MockAgentConfig, inputs: JsonObject) -> Completed:
    """Reason, call tools, hand over and decide, in this order and as far as the script goes.

    A decision below the threshold is held by the host itself, as for any other node.
    """
    agent_id = _agent_id(ctx, config)
    if config.mock_reasoning:
        _reason(ctx, agent_id, config.mock_reasoning)
    for call in config.mock_tool_calls:
        _call_tool(ctx, agent_id, call)
    if not isinstance(config.mock_handoff, Unset):
        _hand_over(ctx, agent_id, config.mock_handoff)
    _decide(ctx, agent_id, config)
    return Completed()


def _agent_id(ctx: NodeContext, config: MockAgentConfig) -> str:
    if not isinstance(config.agent_id, Unset):
        return config.agent_id
    return f"host:mock-agent:{ctx.node_id}" if ctx.agent is None else ctx.agent.agent_id


def _reason(ctx: NodeContext, agent_id: str, reasoning: bool | MockReasoning) -> None:
    if isinstance(reasoning, bool):
        ctx.reason(agent_id, STUB_REASONING)
        return
    is_full = ctx.verbosity == "full" and not isinstance(reasoning.trace, Unset)
    text = reasoning.trace if is_full else reasoning.summary
    count = (
        {} if isinstance(reasoning.token_count, Unset) else {"tokenCount": reasoning.token_count}
    )
    ctx.reason(agent_id, str(text), deltas=reasoning.stream_chunks, **count)


def _call_tool(ctx: NodeContext, agent_id: str, call: MockToolCall) -> None:
    returned: JsonObject = {}
    if isinstance(call.error, Unset):
        returned["outcome"] = call.result
    else:
        error: JsonObject = {"code": call.error.error, "message": call.error.message}
        if not isinstance(call.error.details, Unset):
            error["details"] = call.error.details
        returned["error"] = error
    if not isinstance(call.duration_ms, Unset):
        returned["durationMs"] = call.duration_ms
    ctx.record_tool_call(agent_id, call.tool_id, call.arguments, returned)


def _hand_over(ctx: NodeContext, agent_id: str, handoff: MockHandoff) -> None:
    sender = agent_id if ctx.agent is None else ctx.agent.agent_id
    payload: JsonObject = {"fromAgentId": sender, "toAgentId": handoff.to_agent_id}
    if not isinstance(handoff.reason, Unset):
        payload["reason"] = handoff.reason
    if not isinstance(handoff.context, Unset):
        payload["context"] = handoff.context
    ctx.emit("agent.handoff", payload)


def _decide(ctx: NodeContext, agent_id: str, config: MockAgentConfig) -> None:
    decision = config.mock_decision
    if isinstance(decision, Unset):
        if isinstance(config.mock_confidence, Unset):
            return
        decision = MockDecision(
            decision={"kind": "mock-decision"}, confidence=config.mock_confidence
        )
    payload: JsonObject = {"agentId": agent_id, "decision": decision.decision}
    if not isinstance(decision.confidence, Unset):
        payload["confidence"] = decision.confidence
    if not isinstance(decision.reasoning, Unset):
        payload["reasoning"] = decision.reasoning
    ctx.emit("agent.decided", payload)
