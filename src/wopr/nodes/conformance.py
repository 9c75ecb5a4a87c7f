"""Node types that only conformance workflows use, such as the mock agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from wopr.engine.outcome import Completed, Sleeping
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.agents import AgentId
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    objects_in,
)


@node(
    "conformance.requiresMissing",
    requires=["conformance.never-provided"],
    conformance_only=True,
)
def requires_missing(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Require a capability that no host provides. The node never runs."""
    return Completed()


class HoldInputs(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """The duration of the hold."""

    delay_ms: Annotated[float, msgspec.Meta(ge=0)] = 0


@node("core.conformance.hold", conformance_only=True)
def hold(ctx: NodeContext, config: JsonObject, inputs: HoldInputs) -> Completed | Sleeping:
    """Complete after `delayMs` with the inputs as outputs. A replay executes it again."""
    until = ctx.started_at + int(inputs.delay_ms)
    if ctx.now < until:
        return Sleeping(until)
    return Completed({"delayMs": inputs.delay_ms})


@node("core.conformance.side-effect", conformance_only=True)
async def side_effect(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Perform a side effect. A replay uses its recorded outcome and does not execute it."""
    ctx.log("info", "side effect performed")
    return Completed({"performed": True})


IDENTITY_HOOKS = "core.conformance.identity-hooks"
# The id and the value of the secret of the redaction probe.
PROBE_SECRET_ID = "conformance-test-secret"
PROBE_SECRET = "conformance-byok-plaintext-7f3a"
SCRIPT_KEYS = frozenset({"memoryAction", "emitDuplicateMessageId"})
# The value of the run input `scenario` with which the outputs violate the agent's return schema.
INVALID_RETURN = "mock-return-violation"
HOUR_MS = 3_600_000
LOCAL_REF = "conformance/node-local"


class IdentityHooks(Document, frozen=True, kw_only=True):
    """Test hooks. They have an effect in conformance workflows only."""

    memory_action: Literal[
        "write-then-read", "redaction-probe", "ttl-probe", "cross-tenant-probe", ""
    ] = ""
    probe_memory_ref: str = ""
    byok_secret_id: str = PROBE_SECRET_ID
    emit_duplicate_message_id: bool = False


@node(IDENTITY_HOOKS, conformance_only=True)
async def identity_hooks(ctx: NodeContext, config: IdentityHooks, inputs: JsonObject) -> Completed:
    """Execute the test hooks, then return every input like `core.identity`."""
    match config.memory_action:
        case "write-then-read":
            await _read_back(ctx, "remembered")
        case "redaction-probe":
            await _read_back(ctx, f"the key is {PROBE_SECRET}")
        case "ttl-probe":
            await _probe_ttl(ctx)
        case "cross-tenant-probe":
            await _probe_tenants(ctx, config.probe_memory_ref)
        case "":
            pass
    if config.emit_duplicate_message_id:
        for message_id, content in (("id-1", "first"), ("id-1", "again"), ("id-2", "second")):
            message = {
                "messageId": message_id,
                "from": "user",
                "role": "user",
                "content": content,
                "ts": ctx.now,
            }
            ctx.write_channel("messages", message)
    if ctx.variables.get("scenario") == INVALID_RETURN:
        return Completed({"mockReturn": INVALID_RETURN})
    return Completed(inputs)


def _memory_ref(ctx: NodeContext) -> str:
    pinned: Json = getattr(ctx.agent, "memory_ref", None)
    return pinned if isinstance(pinned, str) else LOCAL_REF


async def _read_back(ctx: NodeContext, content: str) -> None:
    ref = _memory_ref(ctx)
    await ctx.memory.put(ref, content, tags=["conformance"])
    ctx.set_variable("memoryReadback", (await ctx.memory.list(ref))[0])


async def _probe_ttl(ctx: NodeContext) -> None:
    ref = _memory_ref(ctx)
    expired = await ctx.memory.put(ref, "stale", expires_at=ctx.now - 1)
    fresh = await ctx.memory.put(ref, "fresh", expires_at=ctx.now + HOUR_MS)
    ctx.set_variable("expiredId", expired["id"])
    ctx.set_variable("freshId", fresh["id"])
    ctx.set_variable("memoryList", list(await ctx.memory.list(ref)))


async def _probe_tenants(ctx: NodeContext, foreign_ref: str) -> None:
    ref = _memory_ref(ctx)
    own = await ctx.memory.put(ref, "mine")
    ctx.set_variable("ownerEntryId", own["id"])
    ctx.set_variable("ownerProbe", list(await ctx.memory.list(ref)))
    ctx.set_variable("crossTenantProbe", list(await ctx.memory.list(foreign_ref)))


_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
STUB_REASONING = "The script of the mock agent has no text for this reasoning."


class MockReasoning(Closed, frozen=True, kw_only=True):
    """The reasoning of the agent."""

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
    """A tool call with its scripted result or error."""

    tool_id: NonEmpty
    arguments: Json | Unset = UNSET
    result: Json | Unset = UNSET
    error: MockError | Unset = UNSET
    duration_ms: _Count | Unset = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.result, Unset) == isinstance(self.error, Unset):
            raise ValueError(f"tool call {self.tool_id} needs result or error, and not both")


class MockHandoff(Closed, frozen=True, kw_only=True):
    """The handoff to another agent."""

    to_agent_id: AgentId
    reason: str | Unset = UNSET
    context: Json | Unset = UNSET


class MockDecision(Closed, frozen=True, kw_only=True):
    """The decision of the agent, and its confidence."""

    decision: Json
    confidence: _Ratio | Unset = UNSET
    reasoning: str | Unset = UNSET


class MockAgentConfig(Closed, frozen=True, kw_only=True):
    """The script of the agent. An empty script does nothing.

    `mockConfidence` is used only without `mockDecision`.
    """

    agent_id: AgentId | Unset = UNSET
    mock_reasoning: bool | MockReasoning = False
    mock_tool_calls: list[MockToolCall] = []
    mock_handoff: MockHandoff | Unset = UNSET
    mock_decision: MockDecision | Unset = UNSET
    mock_confidence: _Ratio | Unset = UNSET

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield a fault for each tool call without exactly one result or error.

        `null` is a result.
        """
        for index, call in enumerate(objects_in(config, "mockToolCalls")):
            if "result" in call and "error" in call:
                yield f"mockToolCalls.{index}", "a tool call has a result or an error, and not both"
            elif "result" not in call and "error" not in call:
                yield f"mockToolCalls.{index}", "a tool call needs a result or an error"


@node("core.conformance.mock-agent", conformance_only=True)
def mock_agent(ctx: NodeContext, config: MockAgentConfig, inputs: JsonObject) -> Completed:
    """Reason, call tools, hand over and decide, in this order, as the script says.

    A decision below the threshold suspends the node, like the decision of any other node.
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
