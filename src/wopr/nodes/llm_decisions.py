"""What a model decided: on the record, and before a person where it is not sure enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wopr.engine.answers import read_ratification
from wopr.engine.expression_tokens import is_object
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.decisions import YES_OR_NO, members
from wopr.protocol.documents import Json, JsonObject, Unset


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a model decided, how sure it says it is, and what another decision must fit."""

    value: Json
    confidence: float | None
    answer_schema: JsonObject | None


def confidence_of(value: Json) -> float | None:
    """How sure a document says its author is, where it says so in a way that can be used."""
    found: Json = value.get("confidence") if is_object(value) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and 0 <= found <= 1 else None


def settled(
    ctx: NodeContext,
    agent_id: str,
    decision: Decision,
    outputs_of: Callable[[Json], JsonObject],
    end: Callable[[str, float | None], None] = lambda outcome, confidence: None,
) -> Outcome:
    """Record a decision. One that is not sure enough waits for a person, who has the last word.

    Their word is on this decision alone: work that is done again may come to another one, and
    that is asked about anew. `end` closes the bracket around the agent's work.
    """
    key = ctx.ratification_key(decision.value)
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        outcome = _ratified(ctx, agent_id, decision, answer, outputs_of)
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
    return replace(held, resume_schema=_ratification(decision.answer_schema))


def _ratified(
    ctx: NodeContext,
    agent_id: str,
    decision: Decision,
    answer: Json,
    outputs_of: Callable[[Json], JsonObject],
) -> Outcome:
    said = read_ratification(decision.value, answer)
    if said.is_rejection:
        message = f"the decision of {agent_id} was rejected"
        raise NodeFailure(message, code="decision_rejected", retryable=False)
    ctx.emit("agent.decided", {"agentId": agent_id, "decision": said.decision})
    return Completed(outputs_of(said.decision))


def _ratification(schema: JsonObject | None) -> JsonObject | None:
    """What a person may answer; None for anything, where nothing is known of the decision."""
    # References count from the root of a document, so such a schema cannot stand inside another.
    if schema is None or "$defs" in schema:
        return None
    forms = [
        members(action=YES_OR_NO),
        members(ratified={"const": True}),
        members(rejected={"const": True}),
        members(decision=schema),
        schema,
    ]
    return {"anyOf": forms}
