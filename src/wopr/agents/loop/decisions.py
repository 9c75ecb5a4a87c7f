"""Invocations of agents, and their decisions: ratified by a person if the confidence is too low."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from wopr.agents.loop.context import AgentContext
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.engine.resume_values import read_ratification
from wopr.protocol.documents import Json, JsonObject, Unset, is_object

ACCEPT_OR_REJECT: Final[JsonObject] = {"enum": ["accept", "reject"]}
_STARTED: Final = "agent.invocation.started"
_COMPLETED: Final = "agent.invocation.completed"


class AgentInvocation:
    """The start and end events of an agent's invocation in a node.

    With `has_schema`, the end event states that the answer fits its schema.
    """

    def __init__(self, ctx: AgentContext, agent_id: str, *, has_schema: bool = False) -> None:
        self._ctx = ctx
        self._has_schema = has_schema
        visit = f".{ctx.visit}" if ctx.visit else ""
        self._about: JsonObject = {
            "invocationId": f"inv-{ctx.node_id}{visit}-{ctx.attempt}",
            "agentId": agent_id,
        }

    def begin(self, facts: JsonObject) -> None:
        """Record the start with further facts, unless the log already has it."""
        llm = self._ctx.llm
        if not llm.invocation_id and llm.advertises(_STARTED):
            self._ctx.emit(_STARTED, self._about | {"source": "workflow-node"} | facts)

    def fail(self, failure: BaseException) -> None:
        """Record that the invocation failed, or that the model refused."""
        is_refusal = (
            isinstance(failure, NodeFailure)
            and failure.error.code == "envelope_refused_by_provider"
        )
        self.end("refused" if is_refusal else "failed")

    def end(self, outcome: str, confidence: float | None = None) -> None:
        """Record the outcome, unless the log already has it."""
        llm = self._ctx.llm
        if llm.has_decided or not llm.advertises(_COMPLETED):
            return
        payload = self._about | {"outcome": outcome}
        if outcome in ("completed", "escalated") and self._has_schema:
            payload["schemaValidated"] = True
        if confidence is not None:
            payload["confidence"] = confidence
        self._ctx.emit(_COMPLETED, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDecision:
    """A decision, its confidence, and the schema of a person's decision in its place."""

    value: Json
    confidence: float | None
    answer_schema: JsonObject | None


def confidence_of(value: Json) -> float | None:
    """Return the `confidence` of a document if it is a number from 0 to 1."""
    found: Json = value.get("confidence") if is_object(value) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and 0 <= found <= 1 else None


def settle_decision(
    ctx: AgentContext,
    agent_id: str,
    decision: AgentDecision,
    outputs_of: Callable[[Json], JsonObject],
    end: Callable[[str, float | None], None] = lambda outcome, confidence: None,
) -> Outcome:
    """Record a decision. With low confidence it waits until a person ratifies it.

    A ratification applies to this decision only: a repeated execution with another decision waits
    again. `end` records the end of the agent's invocation.
    """
    key = ctx.ratification_key(decision.value)
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        outcome = _apply_ratification(ctx, agent_id, decision, answer, outputs_of)
        end("completed", decision.confidence)
        return outcome
    payload: JsonObject = {"agentId": agent_id, "decision": decision.value}
    held = None
    if decision.confidence is not None:
        payload["confidence"] = decision.confidence
        held = ctx.low_confidence(agent_id, decision.confidence, decision.value, key)
    ctx.emit("agent.decided", payload)
    end("completed" if held is None else "escalated", decision.confidence)
    if held is None:
        return Completed(outputs_of(decision.value))
    return replace(held, resume_schema=_ratification_schema(decision.answer_schema))


def _apply_ratification(
    ctx: AgentContext,
    agent_id: str,
    decision: AgentDecision,
    answer: Json,
    outputs_of: Callable[[Json], JsonObject],
) -> Outcome:
    ratified = read_ratification(decision.value, answer)
    if ratified.is_rejection:
        message = f"The decision of {agent_id} was rejected."
        raise NodeFailure(message, code="decision_rejected", retryable=False)
    ctx.emit("agent.decided", {"agentId": agent_id, "decision": ratified.decision})
    return Completed(outputs_of(ratified.decision))


def _ratification_schema(schema: JsonObject | None) -> JsonObject | None:
    """Return the schema of a person's answer, or None if any answer is valid."""
    # References start at the root of a document, so a schema with definitions cannot be nested.
    if schema is None or "$defs" in schema:
        return None
    forms = [
        object_schema(action=ACCEPT_OR_REJECT),
        object_schema(ratified={"const": True}),
        object_schema(rejected={"const": True}),
        object_schema(decision=schema),
        schema,
    ]
    return {"anyOf": forms}


def object_schema(**schemas: JsonObject) -> JsonObject:
    """Return the schema of an object with at least these members."""
    return {"type": "object", "required": list(schemas), "properties": schemas}
