"""`core.orchestrator.supervisor`: one decision a turn, on the record before it has any effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Annotated

import msgspec

from wopr.engine.answers import read_ratification
from wopr.engine.expressions import ExpressionFault, ExpressionUse, is_true
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.decisions import (
    DECISION,
    YES_OR_NO,
    answers,
    given_instead,
    members,
    read_decision,
)
from wopr.nodes.llm_config import ChatConfig, option_faults
from wopr.nodes.registry import members_of, node
from wopr.protocol.agents import AgentId
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, NonEmpty, Unset

DEFAULT_AGENT = "host:orchestrator"
# Config keys that script the supervisor; only conformance workflows may have them.
SCRIPTS = ("mockPendingDecision", "mockDispatchPlan", "mockDecisions")
HOOKS = ("mockConfidence", *SCRIPTS)
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Rule(Closed, frozen=True, kw_only=True):
    """A decision, and the expression that calls for it."""

    when: NonEmpty
    decision: JsonObject


def ratification(workers: Collection[str]) -> JsonObject:
    """The schema of what a person may say to a held decision, as `read_ratification` reads it.

    A decision may start only the workers that the config names, where it names any.
    """
    decision = DECISION
    if workers:
        known: JsonObject = {"items": {"enum": list(workers)}}
        decision = {"allOf": [DECISION, {"properties": {"nextWorkerIds": known}}]}
    return answers(
        members(action=YES_OR_NO),
        members(ratified={"const": True}),
        members(rejected={"const": True}),
        members(decision=decision),
        decision,
    )


class SupervisorConfig(ChatConfig, frozen=True, kw_only=True):
    """What decides: rules, of which the first that holds is taken, or a model with a prompt.

    `workers` names the workflows that the model may start, and says what each is for.
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
        """The conditions of the rules."""
        for index, rule in enumerate(members_of(config, "rules")):
            if isinstance(rule.get("when"), str):
                yield ExpressionUse(
                    path=f"rules.{index}.when",
                    source=rule["when"],
                    names=("turn",),
                    is_condition=True,
                )

    @staticmethod
    def faults(config: JsonObject) -> Iterator[tuple[str, str]]:
        """Name every rule that cannot be used, and what keeps a model from deciding."""
        yield from option_faults(config)
        for index, rule in enumerate(members_of(config, "rules")):
            yield from _rule_faults(f"rules.{index}", rule)
        yield from _choice_faults(config)


def _choice_faults(config: JsonObject) -> Iterator[tuple[str, str]]:
    """A supervisor decides by rules, or by a prompt and a model."""
    has_rules = bool(config.get("rules"))
    if "prompt" in config:
        if isinstance(config["prompt"], str) and not config["prompt"].strip():
            yield "prompt", f"is {config['prompt']!r}: the prompt must say what to decide"
        if "model" not in config:
            yield "model", "a supervisor with a prompt needs a model, such as openai:gpt-4o"
        if has_rules:
            yield "rules", "a supervisor decides by rules or by a prompt, and not by both"
    elif has_rules and "model" in config:
        yield "model", "a supervisor with rules asks no model; give a prompt in place of the rules"
    elif "model" in config:
        yield "prompt", "a supervisor with a model needs a prompt that says what to decide"


def is_undirected(config: JsonObject) -> bool:
    """Tell whether a supervisor's config has nothing that it could decide by."""
    directions = ("prompt", "model", *HOOKS)
    return not config.get("rules") and not any(name in config for name in directions)


def asks_model(config: JsonObject) -> bool:
    """Tell whether a model takes a supervisor's decisions."""
    return "prompt" in config and not any(script in config for script in SCRIPTS)


def _rule_faults(path: str, rule: JsonObject) -> Iterator[tuple[str, str]]:
    if isinstance(rule.get("decision"), dict):
        try:
            read_decision(rule["decision"])
        except msgspec.ValidationError as fault:
            yield f"{path}.decision", str(fault)


@node("core.orchestrator.supervisor", reentrant=True)
def supervisor(ctx: NodeContext, config: SupervisorConfig, inputs: JsonObject) -> Outcome:
    """Take one decision. One that the agent is not sure of is held until a person ratifies it."""
    agent_id = supervisor_agent_id(ctx, config)
    decision = _next_decision(ctx, config)
    key = ctx.ratification_key(decision)
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return decide(ctx, agent_id, ratified(decision, answer))
    confidence = config.mock_confidence
    # A script's doubt concerns its first turn; it would never end otherwise.
    if isinstance(confidence, Unset) or ctx.decisions:
        return decide(ctx, agent_id, decision)
    payload = {"agentId": agent_id, "decision": decision, "confidence": confidence}
    ctx.emit("agent.decided", payload)
    held = ctx.low_confidence(agent_id, confidence, decision, key)
    if held is None:
        return decide(ctx, agent_id, decision)
    return replace(held, resume_schema=ratification(config.workers))


def supervisor_agent_id(ctx: NodeContext, config: SupervisorConfig) -> str:
    """Who the supervisor is: its pin, its config, or the host's own name for it."""
    if ctx.agent is not None:
        return ctx.agent.agent_id
    return DEFAULT_AGENT if isinstance(config.agent_id, Unset) else config.agent_id


def ratified(pending: JsonObject, answer: Json) -> JsonObject:
    """The decision that stands after a person's answer; a rejection fails the node."""
    said = read_ratification(pending, answer)
    if said.is_rejection:
        raise NodeFailure("the decision was rejected", code="decision_rejected", retryable=False)
    return given_instead(said.decision)


def _next_decision(ctx: NodeContext, config: SupervisorConfig) -> JsonObject:
    """The decision of this turn, counted by those on the log so that a restart takes the same."""
    turn = len(ctx.decisions)
    if turn == 0 and not isinstance(config.mock_pending_decision, Unset):
        return config.mock_pending_decision
    plan = config.mock_dispatch_plan or config.mock_decisions
    if plan:
        return _scripted(plan, turn)
    if config.rules:
        return _by_rule(ctx, config.rules)
    if not ctx.is_conformance:
        raise NodeFailure(
            "a supervisor needs config.rules, or config.prompt and config.model",
            code="validation_error",
            retryable=False,
        )
    if turn == 0:
        return {"kind": "next-worker", "nextWorkerIds": ["conformance-noop"]}
    return {"kind": "terminate", "reason": "goal-reached"}


def _scripted(plan: list[Json], turn: int) -> JsonObject:
    if turn >= len(plan):
        return {"kind": "terminate", "reason": "mockPlan-exhausted"}
    try:
        read_decision(plan[turn])
    except msgspec.ValidationError:
        return {"kind": "terminate", "reason": "mockPlan-malformed"}
    decision: JsonObject = plan[turn]
    return decision


def _by_rule(ctx: NodeContext, rules: list[Rule]) -> JsonObject:
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
    """Put the decision on the log; one agent alone decides for a run."""
    orchestrator = ctx.run_orchestrator
    if orchestrator is not None and orchestrator != agent_id:
        raise NodeFailure(
            f"this run is orchestrated by {orchestrator}, and {agent_id} may not decide for it",
            code="validation_error",
            retryable=False,
        )
    ctx.emit("runOrchestrator.decided", {"agentId": agent_id, "decision": decision})
    return Completed({"decision": decision})
