"""Decisions of supervisors: decoding, and the review by a person if the confidence is too low."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.agents.loop.decisions import ACCEPT_OR_REJECT, object_schema
from wopr.engine.escalation import is_low_confidence
from wopr.engine.interrupts import ORCHESTRATOR_DECISION, WAITING_STATUS
from wopr.engine.outcome import NodeFailure, Suspended
from wopr.nodes.context import NodeContext
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.events.orchestrator import OrchestratorDecision
from wopr.protocol.interrupts import INTERRUPT_KIND

(_DECISION,), _DEFS = msgspec.json.schema_components([OrchestratorDecision])
# The schema of a decision, for use inside the schemas that `answer_forms` returns.
DECISION: Final[JsonObject] = _DECISION


def read_decision(value: Json) -> OrchestratorDecision:
    """Decode a decision. Raises `msgspec.ValidationError`."""
    read: OrchestratorDecision = msgspec.convert(value, OrchestratorDecision)
    return read


def read_replacement(value: Json) -> JsonObject:
    """Return a decision with which a person replaced the supervisor's. Raises `NodeFailure`."""
    try:
        read_decision(value)
    except msgspec.ValidationError as fault:
        raise NodeFailure(
            f"the decision in the answer is not valid: {fault}",
            code="validation_error",
            retryable=False,
        ) from fault
    decision: JsonObject = value
    return decision


def answer_forms(*forms: JsonObject) -> JsonObject:
    """Return the schema of an answer in one of these forms."""
    return {"anyOf": list(forms), "$defs": _DEFS}


ACTIONS = ("accept", "reject", "edit-accept")
_EDITED: JsonObject = object_schema(editedArtifactData=DECISION)
_ACTION: JsonObject = object_schema(action=ACCEPT_OR_REJECT)
_REPLACEMENT: JsonObject = object_schema(decision=DECISION)


def review(ctx: NodeContext, cause: str, decision: JsonObject) -> Suspended | JsonObject | None:
    """Return the decision to execute, a suspension to ratify it, or None if it was rejected."""
    floor = ctx.floor
    confidence = decision.get("confidence")
    if not is_low_confidence(confidence, floor.threshold):
        return decision
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return apply_review(decision, answer)
    payload: JsonObject = {
        "confidence": confidence,
        "floor": floor.threshold,
        "escalationKind": floor.escalation_kind,
        "parentRunId": ctx.run_id,
        "originalDecision": decision,
    }
    workers = decision.get("nextWorkerIds")
    if workers:
        payload["workerId"] = workers[0]
    ctx.emit("core.workflowChain.confidence-escalated", payload, causation_id=cause)
    return _suspension(ctx, key, decision)


def _suspension(ctx: NodeContext, key: str, decision: JsonObject) -> Suspended:
    floor = ctx.floor
    why = f"The supervisor is {decision['confidence']:.0%} confident (needs {floor.threshold:.0%})."
    match floor.interrupt_kind:
        case "approval":
            data: JsonObject = {
                # The number of the decision, which unlike its event id is equal in a replay.
                "artifactId": f"decision:{len(ctx.decisions)}",
                "artifactType": ORCHESTRATOR_DECISION,
                "title": "Approve the supervisor's decision",
                "description": why,
                "actions": list(ACTIONS),
                "artifactData": decision,
            }
            schema = answer_forms(_ACTION, _EDITED)
            return Suspended(kind="approval", key=key, data=data, resume_schema=schema)
        case "clarification":
            question = f"{why} Answer accept, reject, or another decision."
            form: JsonObject = {"anyOf": [ACCEPT_OR_REJECT, DECISION], "$defs": _DEFS}
            asked = {"id": "decision", "question": question, "schema": form}
            return Suspended(kind="clarification", key=key, data={"questions": [asked]})
        case vendor:
            data = {"customKind": vendor, "payload": {"decision": decision, "why": why}}
            schema = answer_forms(ACCEPT_OR_REJECT, DECISION, _ACTION, _REPLACEMENT, _EDITED)
            extras: JsonObject = {WAITING_STATUS: floor.waiting_status}
            if not floor.is_literal:
                extras[INTERRUPT_KIND] = vendor
            return Suspended(
                kind=floor.event_kind,  # type: ignore[arg-type]  # the vendor kind if it is literal
                key=key,
                data=data,
                resume_schema=schema,
                extras=extras,
            )


def apply_review(decision: JsonObject, answer: Json) -> JsonObject | None:
    """Return the decision to execute after an answer; None if the supervisor must decide again."""
    value: Json = answer
    if is_object(value) and "answers" in value:
        value = value["answers"]["decision"]
    action: Json = value.get("action") if is_object(value) else value
    if action == "accept":
        return decision
    if action == "reject":
        return None
    if is_object(value):
        value = value.get("editedArtifactData", value.get("decision", value))
    return read_replacement(value)
