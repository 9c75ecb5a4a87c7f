"""`core.orchestrator.supervisor` with `prompt` and `model`: a model takes the decisions.

The model answers with a decision, how sure it is, and why. The decision goes the way of every
agent's: on the record, within caps and budget, and before a person where it is not sure enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from wopr.engine.fold_agents import SUPERVISOR
from wopr.engine.outcome import Completed, NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.decisions import read_decision
from wopr.nodes.llm import Invocation, models_of, share
from wopr.nodes.llm_key import request_key
from wopr.nodes.llm_plan import Plan, asking_confidence, plan_of
from wopr.nodes.llm_stream import thought_of
from wopr.nodes.llm_talk import BudgetSpent, fitting
from wopr.nodes.llm_work import Work
from wopr.nodes.registry import node
from wopr.nodes.supervisor import (
    SupervisorConfig,
    decide,
    ratification,
    ratified,
    supervisor_agent_id,
)
from wopr.protocol.documents import Json, JsonObject, Unset

# The input that tells the model how far the run has come.
PROGRESS: Final = "progress"
_TASK: Final = (
    "You supervise a workflow. Decide the one thing that happens next:\n"
    "- next-worker: start the workers in `nextWorkerIds`, one after the other.\n"
    "- ask-user: ask a person what you write in `prompt`.\n"
    "- terminate: end the work, because it is done or cannot be done; say which in `reason`.\n"
    f"The input `{PROGRESS}` holds your earlier decisions and what came of the last one."
)


def asked_keys(
    ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject
) -> frozenset[str] | None:
    """The keys of what the supervisor would ask first: one for its model, one for the fallback."""
    plan = _plan(ctx, config, inputs)
    plans = [plan]
    if not isinstance(config.fallback_model, Unset):
        plans.append(plan.with_model(config.fallback_model))
    return frozenset(request_key(each.request()) for each in plans)


@node(SUPERVISOR, reentrant=True, asked_keys=asked_keys)
async def model_supervisor(
    ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject
) -> Outcome:
    """Let a model take one decision. One that it is not sure of waits for a person."""
    models = models_of(ctx)
    work = Work(ctx, fitting(ctx, _plan(ctx, config, inputs), models), models)
    invocation = Invocation(ctx, work.talk.plan)
    invocation.begin()
    await ctx.flush()
    try:
        finding = await work.finish()
    except BudgetSpent as spent:
        invocation.end("failed")
        return spent.breached
    except BaseException as failure:
        invocation.fail(failure)
        raise
    said: JsonObject = finding.value
    if not thought_of(finding.answer) and not ctx.llm.is_private and not ctx.llm.has_decided:
        ctx.reason(work.talk.plan.agent_id, said["reasoning"])
    confidence = _confidence(ctx, config, said)
    outcome = _settled(ctx, work.talk.plan, invocation, said["answer"], confidence)
    if isinstance(outcome, Suspended):
        return replace(outcome, resume_schema=ratification(config.workers))
    return outcome


def _confidence(ctx: NodeContext, config: SupervisorConfig, said: JsonObject) -> float:
    """How sure the model is; a test hook may say otherwise, in the first turn."""
    if not isinstance(config.mock_confidence, Unset) and not ctx.decisions:
        return config.mock_confidence
    return float(said["confidence"])


def _settled(
    ctx: NodeContext, plan: Plan, invocation: Invocation, answer: JsonObject, confidence: float
) -> Outcome:
    """Record the decision, or hold it until a person has ratified it."""
    decision = _checked(answer)
    if decision["kind"] != "ask-user":
        decision = decision | {"confidence": confidence}
    key = ctx.ratification_key(decision)
    ruling = ctx.answer(key)
    if not isinstance(ruling, Unset):
        chosen = ratified(decision, ruling)
        # A person agreed to it: there is no doubt left that the floor would ask about again.
        chosen = {name: value for name, value in chosen.items() if name != "confidence"}
        return _route(ctx, plan, chosen)
    payload: JsonObject = {"agentId": plan.agent_id, "decision": decision}
    held = ctx.low_confidence(plan.agent_id, confidence, decision, key)
    ctx.emit("agent.decided", payload | {"confidence": confidence})
    invocation.end("completed" if held is None else "escalated", confidence)
    if held is not None:
        return held
    return _route(ctx, plan, decision)


def _route(ctx: NodeContext, plan: Plan, decision: JsonObject) -> Outcome:
    """Put the decision on the log last: a run that goes on from there does not decide again."""
    share(ctx, plan, Completed({"decision": decision}))
    return decide(ctx, plan.agent_id, decision)


def _checked(answer: JsonObject) -> JsonObject:
    try:
        read_decision(answer)
    except msgspec.ValidationError as fault:
        raise NodeFailure(
            f"the model's decision: {fault}", code="envelope_payload_invalid", retryable=False
        ) from fault
    return answer


def _plan(ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject) -> Plan:
    told = [_TASK]
    if config.workers:
        told.append("\n".join(["The workers:", *_described(config.workers)]))
    if config.system:
        told.insert(0, config.system)
    own = msgspec.structs.replace(config, system="\n\n".join(told))
    agent_id = supervisor_agent_id(ctx, config)
    plan = plan_of(ctx, own, inputs | {PROGRESS: _progress(ctx)}, agent_id)
    return asking_confidence(replace(plan, schema=decision_schema(list(config.workers))))


def _described(workers: dict[str, str]) -> list[str]:
    return [f"- {worker}: {purpose}" for worker, purpose in workers.items()]


def _progress(ctx: NodeContext) -> Json:
    return {
        "turn": len(ctx.decisions),
        "decisions": [decision for _, decision in ctx.decisions],
        "lastOutcome": ctx.last_dispatch,
    }


def decision_schema(workers: list[str]) -> JsonObject:
    """The schema of a decision as a model is asked for it; without workers any id will do."""
    worker: JsonObject = {"type": "string", "minLength": 1, "maxLength": 256}
    if workers:
        worker = {"type": "string", "enum": workers}
    text: JsonObject = {"type": "string", "minLength": 1}
    return {
        "anyOf": [
            _closed("next-worker", nextWorkerIds={"type": "array", "minItems": 1, "items": worker}),
            _closed("ask-user", prompt=text),
            _closed("terminate", reason=text),
        ]
    }


def _closed(kind: str, **members: JsonObject) -> JsonObject:
    properties: JsonObject = {"kind": {"type": "string", "enum": [kind]}, **members}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
