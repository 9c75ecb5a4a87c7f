"""`core.orchestrator.supervisor` with `prompt` and `model`: a model makes the decisions.

The model answers with a decision, its confidence and a reason. The decision is logged. The budget
applies, and a decision with low confidence waits for a person.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from wopr.agents.loop.agent_loop import AgentLoop
from wopr.agents.loop.decisions import AgentInvocation
from wopr.agents.loop.request_plan import RequestPlan, request_plan, with_confidence
from wopr.agents.loop.session import BudgetExceeded, plan_for_capable_model, reasoning_of
from wopr.agents.models.request_key import request_key
from wopr.engine.fold.agents import SUPERVISOR
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.llm import add_to_shared_context, begin_invocation, models_of
from wopr.nodes.orchestrator.decisions import read_decision
from wopr.nodes.orchestrator.supervisor import (
    SupervisorConfig,
    apply_ratification,
    decide,
    ratification_schema,
    supervisor_agent_id,
)
from wopr.nodes.registry import node
from wopr.protocol.documents import Json, JsonObject, Unset

# The input with the progress of the run.
PROGRESS: Final = "progress"
_TASK: Final = (
    "You supervise a workflow. Decide the one thing that happens next:\n"
    "- next-worker: start the workers in `nextWorkerIds`, one after the other.\n"
    "- ask-user: ask a person what you write in `prompt`.\n"
    "- terminate: end the loop, because it is done or cannot be done; say which in `reason`.\n"
    f"The input `{PROGRESS}` holds your earlier decisions and what came of the last one."
)


def asked_keys(
    ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject
) -> frozenset[str] | None:
    """Return the keys of the supervisor's first request, for its model and for the fallback."""
    plan = _plan(ctx, config, inputs)
    plans = [plan]
    if not isinstance(config.fallback_model, Unset):
        plans.append(plan.with_model(config.fallback_model))
    return frozenset(request_key(each.request()) for each in plans)


@node(SUPERVISOR, reentrant=True, asked_keys=asked_keys)
async def model_supervisor(
    ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject
) -> Outcome:
    """Request one decision from a model. A decision with low confidence waits for a person."""
    models = models_of(ctx)
    loop = AgentLoop(ctx, plan_for_capable_model(ctx, _plan(ctx, config, inputs), models), models)
    invocation = begin_invocation(ctx, loop.session.plan)
    await ctx.flush()
    try:
        result = await loop.run()
    except BudgetExceeded as exceeded:
        invocation.end("failed")
        return exceeded.breached
    except BaseException as failure:
        invocation.fail(failure)
        raise
    answer: JsonObject = result.value
    if not reasoning_of(result.answer) and not ctx.llm.is_private and not ctx.llm.has_decided:
        ctx.reason(loop.session.plan.agent_id, answer["reasoning"])
    confidence = _confidence(ctx, config, answer)
    outcome = _outcome(ctx, loop.session.plan, invocation, answer["answer"], confidence)
    if isinstance(outcome, Suspended):
        return replace(outcome, resume_schema=ratification_schema(config.workers))
    return outcome


def _confidence(ctx: NodeContext, config: SupervisorConfig, answer: JsonObject) -> float:
    """Return the confidence of the model, or that of a test hook in the first turn."""
    if not isinstance(config.mock_confidence, Unset) and not ctx.decisions:
        return config.mock_confidence
    return float(answer["confidence"])


def _outcome(
    ctx: NodeContext,
    plan: RequestPlan,
    invocation: AgentInvocation,
    answer: JsonObject,
    confidence: float,
) -> Outcome:
    """Record the decision, or hold it until a person has ratified it."""
    decision = _check_decision(answer)
    if decision["kind"] != "ask-user":
        decision = decision | {"confidence": confidence}
    key = ctx.ratification_key(decision)
    ratification_answer = ctx.answer(key)
    if not isinstance(ratification_answer, Unset):
        chosen = apply_ratification(decision, ratification_answer)
        # A person has ratified it, so the threshold of the dispatch does not apply.
        chosen = {name: value for name, value in chosen.items() if name != "confidence"}
        return _route(ctx, plan, chosen)
    payload: JsonObject = {"agentId": plan.agent_id, "decision": decision}
    held = ctx.low_confidence(plan.agent_id, confidence, decision, key)
    ctx.emit("agent.decided", payload | {"confidence": confidence})
    invocation.end("completed" if held is None else "escalated", confidence)
    if held is not None:
        return held
    return _route(ctx, plan, decision)


def _route(ctx: NodeContext, plan: RequestPlan, decision: JsonObject) -> Outcome:
    """Emit the decision as the last event, so that a resumed run does not decide again."""
    add_to_shared_context(ctx, plan, Completed({"decision": decision}))
    return decide(ctx, plan.agent_id, decision)


def _check_decision(answer: JsonObject) -> JsonObject:
    try:
        read_decision(answer)
    except msgspec.ValidationError as fault:
        raise NodeFailure(
            f"the decision of the model is not valid: {fault}",
            code="envelope_payload_invalid",
            retryable=False,
        ) from fault
    return answer


def _plan(ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject) -> RequestPlan:
    instructions = [_TASK]
    if config.workers:
        instructions.append("\n".join(["The workers:", *_worker_lines(config.workers)]))
    if config.system:
        instructions.insert(0, config.system)
    own = msgspec.structs.replace(config, system="\n\n".join(instructions))
    agent_id = supervisor_agent_id(ctx, config)
    plan = request_plan(ctx, own, inputs | {PROGRESS: _progress(ctx)}, agent_id)
    return with_confidence(replace(plan, schema=decision_schema(list(config.workers))))


def _worker_lines(workers: dict[str, str]) -> list[str]:
    return [f"- {worker}: {purpose}" for worker, purpose in workers.items()]


def _progress(ctx: NodeContext) -> Json:
    return {
        "turn": len(ctx.decisions),
        "decisions": [decision for _, decision in ctx.decisions],
        "lastOutcome": ctx.last_dispatch,
    }


def decision_schema(workers: list[str]) -> JsonObject:
    """Return the schema of a decision for a model. Without workers, any worker id is valid."""
    worker: JsonObject = {"type": "string", "minLength": 1, "maxLength": 256}
    if workers:
        worker = {"type": "string", "enum": workers}
    text: JsonObject = {"type": "string", "minLength": 1}
    return {
        "anyOf": [
            _decision_form(
                "next-worker", nextWorkerIds={"type": "array", "minItems": 1, "items": worker}
            ),
            _decision_form("ask-user", prompt=text),
            _decision_form("terminate", reason=text),
        ]
    }


def _decision_form(kind: str, **members: JsonObject) -> JsonObject:
    properties: JsonObject = {"kind": {"type": "string", "enum": [kind]}, **members}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
