"""`openwop.llm.chat`, `openwop.llm.structured` and `openwop.llm.agent`, also named `core.llm.*`.

The JSON of such a node:

- config of all three: `model` (`provider:model`; default: the host's default), `system` and
  `prompt` (written by the author, and trusted), `temperature`, `topP`, `maxOutputTokens`, `stop`,
  `seed`, `providerOptions`, `stream`, `timeoutMs`, `maxRetries`, `requires` and `fallbackModel`,
  `budget: {maxTokens, maxCostUsd, maxCalls, maxToolCalls}`, `agentSharing` (`isolated`, `shared`
  or `shared:<groupId>`: the conversation that the model gets as history). API keys come from the
  node's `credentialsRef` and never from the config.
- inputs: `prompt` (text) and `messages` ([{role: user|assistant, content}]) are the conversation;
  every other input is passed to the model as data under its name. All inputs are untrusted.
- `structured`: `schema`, the JSON Schema of the result.
- `agent`: `schema` (optional), `tools` (names; default: all that the agent's manifest allows),
  `httpTools`, `handoffs: {agentId: when}`, `asksConfidence`, `toolTimeoutMs`, `maxWrongCalls`.
- outputs: chat `{text, model, finishReason}`; structured `{result, model, confidence?}`; agent
  `{result, model, text?, confidence?, reasoning?, handoff?: {toAgentId, reason}}`, where `text` is
  present if the result is text. A node without a `schema` whose agent's manifest has a
  `returnSchema` has the document of that schema as its outputs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.agents.loop.agent_loop import AgentLoop, LoopResult
from wopr.agents.loop.config import AgentConfig, ChatConfig, StructuredConfig
from wopr.agents.loop.context import ContextMessage
from wopr.agents.loop.decisions import (
    AgentDecision,
    AgentInvocation,
    confidence_of,
    settle_decision,
)
from wopr.agents.loop.request_plan import RequestPlan, agent_of, request_plan, wanted_tools
from wopr.agents.loop.session import BudgetExceeded, plan_for_capable_model, reasoning_of
from wopr.agents.models.mock import MockModels
from wopr.agents.models.port import Models
from wopr.agents.models.request_key import request_key
from wopr.agents.tools.tool import ToolFault
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Json, JsonObject, Unset, is_object

CHAT: Final = "openwop.llm.chat"
STRUCTURED: Final = "openwop.llm.structured"
AGENT: Final = "openwop.llm.agent"


def asked_keys(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> frozenset[str] | None:
    """Return the keys of the node's first request: one for its model, one for the fallback.

    All later requests follow from the first one and from the log, so a replay with the same first
    request makes the same requests. Returns None if a tool of the agent is not known in this
    process: it may have been known in another process.
    """
    plan = request_plan(ctx, config, inputs)
    allowed = ctx.llm.allowlist(plan.agent_id)
    missing = [name for name in plan.refused_tools if allowed is None or name in allowed]
    if not all(ctx.llm.knows_tool(name) for name in missing):
        return None
    plans = [plan]
    if not isinstance(plan.config.fallback_model, Unset):
        plans.append(plan.with_model(plan.config.fallback_model))
    return frozenset(request_key(each.request()) for each in plans)


@node(CHAT, aliases=("core.llm.chat",), asked_keys=asked_keys)
async def chat(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> Outcome:
    """Send a request to a model and return its answer. The answer is streamed."""
    loop = _agent_loop(ctx, config, inputs)
    try:
        result = await loop.run()
    except BudgetExceeded as exceeded:
        return exceeded.breached
    answer = result.answer
    outputs = {"text": answer.text, "model": answer.model, "finishReason": answer.finish_reason}
    return add_to_shared_context(ctx, loop.session.plan, Completed(outputs))


@node(STRUCTURED, aliases=("core.llm.structured",), asked_keys=asked_keys)
async def structured(ctx: NodeContext, config: StructuredConfig, inputs: JsonObject) -> Outcome:
    """Request JSON that fits a schema from a model, with one repair if it does not fit.

    A result with a `confidence` between 0 and 1 is a decision. It waits for a person if the
    confidence is below the threshold.
    """
    loop = _agent_loop(ctx, config, inputs)
    try:
        result = await loop.run()
    except BudgetExceeded as exceeded:
        return exceeded.breached
    confidence = confidence_of(result.value)
    outputs: JsonObject = {"result": result.value, "model": result.answer.model}
    plan = loop.session.plan
    if confidence is None:
        return add_to_shared_context(ctx, plan, Completed(outputs))
    outputs["confidence"] = confidence
    decision = AgentDecision(value=result.value, confidence=confidence, answer_schema=config.schema)
    outcome = settle_decision(
        ctx, plan.agent_id, decision, lambda value: outputs | {"result": value}
    )
    return add_to_shared_context(ctx, plan, outcome)


@node(AGENT, aliases=("core.llm.agent",), asked_keys=asked_keys)
async def agent(ctx: NodeContext, config: AgentConfig, inputs: JsonObject) -> Outcome:
    """Run an agent with its tools until it has a result, hands over or needs a person."""
    await _prepare_tools(ctx, config)
    loop = _agent_loop(ctx, config, inputs)
    invocation = begin_invocation(ctx, loop.session.plan)
    # Readers see the start before the first answer.
    await ctx.flush()
    try:
        result = await loop.run()
    except BudgetExceeded as exceeded:
        invocation.end("failed")
        return exceeded.breached
    except BaseException as failure:
        invocation.fail(failure)
        raise
    return add_to_shared_context(ctx, loop.session.plan, _outcome(ctx, loop, invocation, result))


def add_to_shared_context(ctx: NodeContext, plan: RequestPlan, outcome: Outcome) -> Outcome:
    """Add the question and the answer to the node's shared context."""
    if isinstance(outcome, Completed):
        asked = [
            ContextMessage(sender="user", role=m.role, content=m.content) for m in plan.own_messages
        ]
        answer = ContextMessage(
            sender=plan.agent_id, role="assistant", content=_answer_text(plan, outcome.outputs)
        )
        ctx.llm.share([*asked, answer])
    return outcome


def _answer_text(plan: RequestPlan, outputs: JsonObject) -> str:
    """Return the answer in a node's outputs as text."""
    names = ("handoff",) if plan.returns_result else ("text", "result", "handoff", "decision")
    answer: Json = next((outputs[name] for name in names if name in outputs), outputs)
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()


def begin_invocation(ctx: NodeContext, plan: RequestPlan) -> AgentInvocation:
    """Record the start of the agent's invocation, and the tools that it may not use."""
    if not ctx.llm.invocation_id:
        for name in plan.refused_tools:
            ctx.log(
                "warn",
                f"The tool {name} does not exist, or the manifest of {plan.agent_id} does not "
                "allow it",
                toolName=name,
            )
    facts: JsonObject = {
        "resolvedModel": plan.model,
        "resolvedProvider": plan.provider,
        "toolSurfaceCount": len(plan.tools),
    }
    manifest = ctx.llm.manifest(plan.agent_id)
    if manifest is not None:
        facts |= {"modelClass": manifest.model_class, "resolvedAgentVersion": manifest.version}
    invocation = AgentInvocation(ctx, plan.agent_id, has_schema=plan.schema is not None)
    invocation.begin(facts)
    return invocation


def _agent_loop(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> AgentLoop:
    models = models_of(ctx)
    plan = plan_for_capable_model(ctx, request_plan(ctx, config, inputs), models)
    return AgentLoop(ctx, plan, models)


async def _prepare_tools(ctx: NodeContext, config: AgentConfig) -> None:
    """List the tools of MCP servers. Raises `NodeFailure` if a server cannot be reached."""
    try:
        await ctx.llm.prepare_tools(wanted_tools(ctx, config, agent_of(ctx)))
    except ToolFault as fault:
        raise NodeFailure(str(fault), code="tool_unavailable") from fault


def models_of(ctx: NodeContext) -> Models:
    """Return the run's mock provider if a test key set one, else the host's models."""
    mock = ctx.configurable.get("mockProvider")
    if mock is not None:
        return MockModels(mock)
    if ctx.llm.models is None:
        raise NodeFailure(
            "This host has no models. Install wopr[models] and set the key of a provider, such as "
            "OPENAI_API_KEY, or WOPR_MODEL_SERVERS.",
            code="capability_not_provided",
            retryable=False,
        )
    return ctx.llm.models


def _outcome(
    ctx: NodeContext, loop: AgentLoop, invocation: AgentInvocation, result: LoopResult
) -> Outcome:
    """Turn the agent's result into a decision and the node's outputs."""
    plan = loop.session.plan
    if result.handoff is not None:
        decision = {"kind": "handoff", **result.handoff}
        ctx.emit("agent.decided", {"agentId": plan.agent_id, "decision": decision})
        invocation.end("handed-off")
        return Completed({"model": result.answer.model, "handoff": result.handoff})
    value, confidence = result.value, confidence_of(result.value)
    outputs: JsonObject = {"model": result.answer.model}
    if plan.asks_confidence:
        outputs["reasoning"] = value["reasoning"]
        value = value["answer"]
    if confidence is not None:
        outputs["confidence"] = confidence
    is_first = isinstance(ctx.answer(ctx.ratification_key(value)), Unset)
    if is_first and not reasoning_of(result.answer) and not ctx.llm.is_private:
        ctx.reason(plan.agent_id, outputs.get("reasoning") or result.answer.text)
    return settle_decision(
        ctx,
        plan.agent_id,
        AgentDecision(value=value, confidence=confidence, answer_schema=_answer_schema(plan)),
        lambda decided: _outputs(plan, outputs, decided),
        invocation.end,
    )


def _answer_schema(plan: RequestPlan) -> JsonObject | None:
    """Return the schema of a person's decision; None if the answer is text."""
    if not plan.asks_confidence or plan.schema is None:
        return plan.schema
    answer: JsonObject = plan.schema["properties"]["answer"]
    return answer


def _outputs(plan: RequestPlan, outputs: JsonObject, value: Json) -> JsonObject:
    if plan.returns_result and is_object(value):
        return value
    text = {"text": value} if isinstance(value, str) else {}
    return {**outputs, **text, "result": value}
