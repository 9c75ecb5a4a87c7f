"""`core.orchestrator.supervisor`: one decision per turn, logged before it is executed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Annotated

import msgspec

from wopr.agents.loop.config import ChatConfig, option_faults
from wopr.agents.loop.decisions import ACCEPT_OR_REJECT, object_schema
from wopr.engine.cel.expressions import ExpressionFault, ExpressionUse, is_true
from wopr.engine.fold.agents import SUPERVISOR
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.engine.resume_values import read_ratification
from wopr.nodes.context import NodeContext
from wopr.nodes.orchestrator.decisions import (
    DECISION,
    answer_forms,
    read_decision,
    read_replacement,
)
from wopr.nodes.registry import node
from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset, objects_in

DEFAULT_AGENT = "host:orchestrator"
# Config keys that script the supervisor; only conformance workflows may have them.
SCRIPTS = ("mockPendingDecision", "mockDispatchPlan", "mockDecisions")
HOOKS = ("mockConfidence", *SCRIPTS)
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Rule(Closed, frozen=True, kw_only=True):
    """A decision, and its condition."""

    when: NonEmpty
    decision: JsonObject


def ratification_schema(workers: Collection[str]) -> JsonObject:
    """Return the schema of a person's answer to a held decision, as `read_ratification` reads it.

    If the config names workers, a decision may start only these.
    """
    decision = DECISION
    if workers:
        known: JsonObject = {"items": {"enum": list(workers)}}
        decision = {"allOf": [DECISION, {"properties": {"nextWorkerIds": known}}]}
    return answer_forms(
        object_schema(action=ACCEPT_OR_REJECT),
        object_schema(ratified={"const": True}),
        object_schema(rejected={"const": True}),
        object_schema(decision=decision),
        decision,
    )


class SupervisorConfig(ChatConfig, frozen=True, kw_only=True):
    """Either rules, or a model with a prompt. The first rule whose condition is true decides.

    `workers` are the workflows that the model may start, each with its purpose.
    """

    agent_id: AgentId | Unset = UNSET
    rules: list[Rule] = []
    workers: dict[NonEmpty, str] = {}
    mock_confidence: _Ratio | Unset = UNSET
    mock_pending_decision: JsonObject | Unset = UNSET
    mock_dispatch_plan: list[Json] = []
    mock_decisions: list[Json] = []

    @staticmethod
    def expressions_in(config: JsonObject) -> Iterator[ExpressionUse]:
        """Yield the conditions of the rules."""
        for index, rule in enumerate(objects_in(config, "rules")):
            if isinstance(rule.get("when"), str):
                yield ExpressionUse(
                    path=f"rules.{index}.when",
                    source=rule["when"],
                    names=("turn",),
                    is_condition=True,
                )

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Yield the faults of the rules, the options, the prompt and the model."""
        yield from option_faults(config)
        for index, rule in enumerate(objects_in(config, "rules")):
            yield from _rule_faults(f"rules.{index}", rule)
        yield from _choice_faults(config)


def _choice_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the faults of the choice between rules, and a prompt with a model."""
    has_rules = bool(config.get("rules"))
    if "prompt" in config:
        if isinstance(config["prompt"], str) and not config["prompt"].strip():
            yield "prompt", f"is {config['prompt']!r}: the prompt must describe the decision"
        if "model" not in config:
            yield "model", "a supervisor with a prompt needs a model, such as openai:gpt-4o"
        if has_rules:
            yield "rules", "a supervisor has either rules or a prompt"
    elif has_rules and "model" in config:
        yield "model", "a supervisor with rules uses no model: replace the rules by a prompt"
    elif "model" in config:
        yield "prompt", "a supervisor with a model needs a prompt that describes the decision"


def has_no_decision_source(config: JsonObject) -> bool:
    """Return whether a supervisor's config has no rules, prompt, model or test hook."""
    directions = ("prompt", "model", *HOOKS)
    return not config.get("rules") and not any(name in config for name in directions)


def asks_model(config: JsonObject) -> bool:
    """Return whether a model makes a supervisor's decisions."""
    return "prompt" in config and not any(script in config for script in SCRIPTS)


def _rule_faults(path: str, rule: JsonObject) -> Iterator[tuple[str, str]]:
    if isinstance(rule.get("decision"), dict):
        try:
            read_decision(rule["decision"])
        except msgspec.ValidationError as fault:
            yield f"{path}.decision", str(fault)


@node(SUPERVISOR, reentrant=True)
def supervisor(ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject) -> Outcome:
    """Make one decision. A decision with low confidence is held until a person ratifies it."""
    agent_id = supervisor_agent_id(ctx, config)
    decision = _next_decision(ctx, config)
    key = ctx.ratification_key(decision)
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return decide(ctx, agent_id, apply_ratification(decision, answer))
    confidence = config.mock_confidence
    # The scripted confidence applies to the first turn only: otherwise the run would never end.
    if isinstance(confidence, Unset) or ctx.decisions:
        return decide(ctx, agent_id, decision)
    payload = {"agentId": agent_id, "decision": decision, "confidence": confidence}
    ctx.emit("agent.decided", payload)
    held = ctx.low_confidence(agent_id, confidence, decision, key)
    if held is None:
        return decide(ctx, agent_id, decision)
    return replace(held, resume_schema=ratification_schema(config.workers))


def supervisor_agent_id(ctx: NodeContext, config: SupervisorConfig) -> str:
    """Return the supervisor's agent id: of its pinned agent, its config, or the default."""
    if ctx.agent is not None:
        return ctx.agent.agent_id
    return DEFAULT_AGENT if isinstance(config.agent_id, Unset) else config.agent_id


def apply_ratification(pending: JsonObject, answer: Json) -> JsonObject:
    """Return the decision after a person's answer. A rejection fails the node."""
    answered = read_ratification(pending, answer)
    if answered.is_rejection:
        raise NodeFailure("the decision was rejected", code="decision_rejected", retryable=False)
    return read_replacement(answered.decision)


def _next_decision(ctx: NodeContext, config: SupervisorConfig) -> JsonObject:
    """Return the decision of this turn. It is the same after a restart: the log counts the turns."""
    turn = len(ctx.decisions)
    if turn == 0 and not isinstance(config.mock_pending_decision, Unset):
        return config.mock_pending_decision
    plan = config.mock_dispatch_plan or config.mock_decisions
    if plan:
        return _scripted_decision(plan, turn)
    if config.rules:
        return _decision_by_rules(ctx, config.rules)
    if not ctx.is_conformance:
        raise NodeFailure(
            "a supervisor needs config.rules, or config.prompt and config.model",
            code="validation_error",
            retryable=False,
        )
    if turn == 0:
        return {"kind": "next-worker", "nextWorkerIds": ["conformance-noop"]}
    return {"kind": "terminate", "reason": "goal-reached"}


def _scripted_decision(plan: list[Json], turn: int) -> JsonObject:
    if turn >= len(plan):
        return {"kind": "terminate", "reason": "mockPlan-exhausted"}
    try:
        read_decision(plan[turn])
    except msgspec.ValidationError:
        return {"kind": "terminate", "reason": "mockPlan-malformed"}
    decision: JsonObject = plan[turn]
    return decision


def _decision_by_rules(ctx: NodeContext, rules: list[Rule]) -> JsonObject:
    known = {**ctx.scope, "turn": len(ctx.decisions)}
    for rule in rules:
        try:
            if is_true(rule.when, known):
                return rule.decision
        except ExpressionFault as fault:
            message = f"node {ctx.node_id!r}: a rule's {fault}"
            raise NodeFailure(message, code="expression_error", retryable=False) from fault
    return {"kind": "terminate", "reason": "no-rule-holds"}


def decide(ctx: NodeContext, agent_id: str, decision: JsonObject) -> Completed:
    """Emit the decision. Raises `NodeFailure` if another agent is the run's orchestrator."""
    orchestrator = ctx.run_orchestrator
    if orchestrator is not None and orchestrator != agent_id:
        raise NodeFailure(
            f"the orchestrator of this run is {orchestrator}: {agent_id} may not decide",
            code="validation_error",
            retryable=False,
        )
    ctx.emit("runOrchestrator.decided", {"agentId": agent_id, "decision": decision})
    return Completed({"decision": decision})
