"""`openwop.llm.chat`, `openwop.llm.structured` and `openwop.llm.agent`, and the same as `core.llm.*`.

What such a node is told, in JSON:

- config of all three: `model` (`provider:model`; without it the host's default), `system` and `prompt`
  (the author's own words), `temperature`, `topP`, `maxOutputTokens`, `stop`, `seed`,
  `providerOptions`, `stream`, `timeoutMs`, `maxRetries`, `requires` and `fallbackModel`,
  `budget: {maxTokens, maxCostUsd, maxCalls, maxToolCalls}`, `agentSharing` (`isolated`, `shared`
  or `shared:<groupId>`: the conversation that is given to the model as history). Keys come from
  the node's own `credentialsRef`, and never from here.
- inputs: `prompt` (text) and `messages` ([{role: user|assistant, content}]) are the conversation;
  every other input is given to the model as data under its name. All of it is untrusted.
- `structured`: `schema`, the JSON Schema of the result.
- `agent`: `schema` (optional), `tools` (names; without it all that the agent's manifest allows),
  `httpTools`, `handoffs: {agentId: when}`, `asksConfidence`, `toolTimeoutMs`, `maxWrongCalls`.
- outputs: chat `{text, model, finishReason}`; structured `{result, model, confidence?}`; agent
  `{result, model, text?, confidence?, reasoning?, handoff?: {toAgentId, reason}}`, where `text` is
  there when the result is one. An agent whose manifest has a `returnSchema`, in a node without
  a `schema`, returns that document and nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.engine.expression_tokens import is_object
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_config import AgentConfig, ChatConfig, StructuredConfig
from wopr.nodes.llm_context import ContextMessage
from wopr.nodes.llm_decisions import Decision, confidence_of, settled
from wopr.nodes.llm_key import request_key
from wopr.nodes.llm_plan import Plan, agent_of, plan_of, wanted_tools
from wopr.nodes.llm_stream import thought_of
from wopr.nodes.llm_talk import BudgetSpent, fitting
from wopr.nodes.llm_work import Finding, Work
from wopr.nodes.mock_models import MockModels
from wopr.nodes.models import Models
from wopr.nodes.registry import node
from wopr.nodes.tools import ToolFault
from wopr.protocol.documents import Json, JsonObject, Unset

CHAT: Final = "openwop.llm.chat"
STRUCTURED: Final = "openwop.llm.structured"
AGENT: Final = "openwop.llm.agent"


def asked_keys(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> frozenset[str] | None:
    """The keys of what the node would ask first: one for its model, one for the fallback.

    All later requests follow from the first and from what is on record, so a replay that would
    ask the same first asks the same all along. None where nothing is known yet of a tool that
    the agent would have: another process may have known it.
    """
    plan = plan_of(ctx, config, inputs)
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
    """Ask a model and return what it says, streaming it as it comes."""
    work = _work(ctx, config, inputs)
    try:
        finding = await work.finish()
    except BudgetSpent as spent:
        return spent.breached
    answer = finding.answer
    outputs = {"text": answer.text, "model": answer.model, "finishReason": answer.finish_reason}
    return share(ctx, work.talk.plan, Completed(outputs))


@node(STRUCTURED, aliases=("core.llm.structured",), asked_keys=asked_keys)
async def structured(ctx: NodeContext, config: StructuredConfig, inputs: JsonObject) -> Outcome:
    """Ask a model for JSON that fits a schema; an answer that does not is asked for once more.

    A `confidence` between 0 and 1 in the result makes it a decision, which waits for a person
    when it is too low.
    """
    work = _work(ctx, config, inputs)
    try:
        finding = await work.finish()
    except BudgetSpent as spent:
        return spent.breached
    confidence = confidence_of(finding.value)
    outputs: JsonObject = {"result": finding.value, "model": finding.answer.model}
    plan = work.talk.plan
    if confidence is None:
        return share(ctx, plan, Completed(outputs))
    outputs["confidence"] = confidence
    decision = Decision(value=finding.value, confidence=confidence, answer_schema=config.schema)
    outcome = settled(ctx, plan.agent_id, decision, lambda value: outputs | {"result": value})
    return share(ctx, plan, outcome)


@node(AGENT, aliases=("core.llm.agent",), asked_keys=asked_keys)
async def agent(ctx: NodeContext, config: AgentConfig, inputs: JsonObject) -> Outcome:
    """Let an agent work with its tools until it has a result, hands over or is not sure enough."""
    await _know_tools(ctx, config)
    work = _work(ctx, config, inputs)
    invocation = Invocation(ctx, work.talk.plan)
    invocation.begin()
    # Readers see that it works before it has anything to show.
    await ctx.flush()
    try:
        finding = await work.finish()
    except BudgetSpent as spent:
        invocation.end("failed")
        return spent.breached
    except BaseException as failure:
        invocation.fail(failure)
        raise
    return share(ctx, work.talk.plan, _concluded(ctx, work, invocation, finding))


def share(ctx: NodeContext, plan: Plan, outcome: Outcome) -> Outcome:
    """Add what was asked and what counts as the answer to the node's shared context."""
    if isinstance(outcome, Completed):
        said = [ContextMessage(sender="user", role=m.role, content=m.content) for m in plan.asked]
        answer = ContextMessage(
            sender=plan.agent_id, role="assistant", content=_answer_text(plan, outcome.outputs)
        )
        ctx.llm.share([*said, answer])
    return outcome


def _answer_text(plan: Plan, outputs: JsonObject) -> str:
    """The answer in a node's outputs, as text."""
    names = ("handoff",) if plan.returns_result else ("text", "result", "handoff", "decision")
    answer: Json = next((outputs[name] for name in names if name in outputs), outputs)
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()


class Invocation:
    """The bracket around everything that a live agent does in a node."""

    def __init__(self, ctx: NodeContext, plan: Plan) -> None:
        self._ctx = ctx
        self._plan = plan
        visit = f".{ctx.visit}" if ctx.visit else ""
        self._id = f"inv-{ctx.node_id}{visit}-{ctx.attempt}"

    def begin(self) -> None:
        """Record the invocation, unless it is on the log already."""
        ctx, plan = self._ctx, self._plan
        for name in plan.refused_tools:
            if not ctx.llm.invocation_id:
                note = f"{plan.agent_id} may not use {name}, or there is no such tool"
                ctx.log("warn", note, toolName=name)
        if ctx.llm.invocation_id or not ctx.llm.advertises("agent.invocation.started"):
            return
        payload: JsonObject = {
            "invocationId": self._id,
            "agentId": plan.agent_id,
            "source": "workflow-node",
            "resolvedModel": plan.model,
            "resolvedProvider": plan.provider,
            "toolSurfaceCount": len(plan.tools),
        }
        manifest = ctx.llm.manifest(plan.agent_id)
        if manifest is not None:
            payload |= {
                "modelClass": manifest.model_class,
                "resolvedAgentVersion": manifest.version,
            }
        ctx.emit("agent.invocation.started", payload)

    def fail(self, failure: BaseException) -> None:
        """Record that it failed, or that the model refused."""
        is_refusal = (
            isinstance(failure, NodeFailure)
            and failure.error.code == "envelope_refused_by_provider"
        )
        self.end("refused" if is_refusal else "failed")

    def end(self, outcome: str, confidence: float | None = None) -> None:
        """Record how it ended, unless that is on the log already."""
        llm = self._ctx.llm
        if llm.has_decided or not llm.advertises("agent.invocation.completed"):
            return
        payload: JsonObject = {
            "invocationId": self._id,
            "agentId": self._plan.agent_id,
            "outcome": outcome,
        }
        if outcome in ("completed", "escalated") and self._plan.schema is not None:
            payload["schemaValidated"] = True
        if confidence is not None:
            payload["confidence"] = confidence
        self._ctx.emit("agent.invocation.completed", payload)


def _work(ctx: NodeContext, config: ChatConfig, inputs: JsonObject) -> Work:
    models = models_of(ctx)
    plan = fitting(ctx, plan_of(ctx, config, inputs), models)
    return Work(ctx, plan, models)


async def _know_tools(ctx: NodeContext, config: AgentConfig) -> None:
    """Learn what the tools are that are had from elsewhere; an agent never works without them."""
    try:
        await ctx.llm.prepare_tools(wanted_tools(ctx, config, agent_of(ctx)))
    except ToolFault as fault:
        raise NodeFailure(str(fault), code="tool_unavailable") from fault


def models_of(ctx: NodeContext) -> Models:
    """Who answers: the run's mock provider where a test key set one, else the host's models."""
    mock = ctx.configurable.get("mockProvider")
    if mock is not None:
        return MockModels(mock)
    if ctx.llm.models is None:
        raise NodeFailure(
            "this host has no models: install wopr[models] and set the key of a provider, such as "
            "OPENAI_API_KEY, or WOPR_MODEL_SERVERS",
            code="capability_not_provided",
            retryable=False,
        )
    return ctx.llm.models


def _concluded(ctx: NodeContext, work: Work, invocation: Invocation, finding: Finding) -> Outcome:
    """Turn what the agent found into a decision and the node's outputs."""
    plan = work.talk.plan
    if finding.handoff is not None:
        decision = {"kind": "handoff", **finding.handoff}
        ctx.emit("agent.decided", {"agentId": plan.agent_id, "decision": decision})
        invocation.end("handed-off")
        return Completed({"model": finding.answer.model, "handoff": finding.handoff})
    value, confidence = finding.value, confidence_of(finding.value)
    outputs: JsonObject = {"model": finding.answer.model}
    if plan.asks_confidence:
        outputs["reasoning"] = value["reasoning"]
        value = value["answer"]
    if confidence is not None:
        outputs["confidence"] = confidence
    is_first = isinstance(ctx.answer(ctx.ratification_key(value)), Unset)
    if is_first and not thought_of(finding.answer) and not ctx.llm.is_private:
        ctx.reason(plan.agent_id, outputs.get("reasoning") or finding.answer.text)
    return settled(
        ctx,
        plan.agent_id,
        Decision(value=value, confidence=confidence, answer_schema=_answer_schema(plan)),
        lambda decided: _outputs(plan, outputs, decided),
        invocation.end,
    )


def _answer_schema(plan: Plan) -> JsonObject | None:
    """What a person's own decision must fit; None where the model's may be any text."""
    if not plan.asks_confidence or plan.schema is None:
        return plan.schema
    answer: JsonObject = plan.schema["properties"]["answer"]
    return answer


def _outputs(plan: Plan, outputs: JsonObject, value: Json) -> JsonObject:
    if plan.returns_result and is_object(value):
        return value
    text = {"text": value} if isinstance(value, str) else {}
    return {**outputs, **text, "result": value}
