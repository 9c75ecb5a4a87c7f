"""The confidence floor: a decision below it is not carried out before a person agrees."""

from __future__ import annotations

from wopr.engine.asking import ORCHESTRATOR_DECISION
from wopr.engine.escalation import is_low
from wopr.engine.expression_tokens import is_object
from wopr.engine.interrupts import WAITING_STATUS
from wopr.engine.outcome import Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.decisions import DECISION, YES_OR_NO, answers, given_instead, members
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.interrupts import INTERRUPT_KIND

ACTIONS = ("accept", "reject", "edit-accept")
_EDITED: JsonObject = members(editedArtifactData=DECISION)
_DECIDED: JsonObject = members(action=YES_OR_NO)
_INSTEAD: JsonObject = members(decision=DECISION)


def review(ctx: NodeContext, cause: str, decision: JsonObject) -> Suspended | JsonObject | None:
    """The decision to carry out; a wait when it is not sure enough; None when it was rejected."""
    floor = ctx.floor
    confidence = decision.get("confidence")
    if not is_low(confidence, floor.threshold):
        return decision
    key = ctx.interrupt_key()
    answer = ctx.answer(key)
    if not isinstance(answer, Unset):
        return ratified(decision, answer)
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
    return _wait(ctx, key, decision)


def _wait(ctx: NodeContext, key: str, decision: JsonObject) -> Suspended:
    floor = ctx.floor
    why = (
        f"The supervisor is only {decision['confidence']:.0%} sure, "
        f"and {floor.threshold:.0%} is needed."
    )
    match floor.interrupt_kind:
        case "approval":
            data: JsonObject = {
                # The decision's place in the run, not its event id: a replay names it alike.
                "artifactId": f"decision:{len(ctx.decisions)}",
                "artifactType": ORCHESTRATOR_DECISION,
                "title": "Approve the supervisor's decision",
                "description": why,
                "actions": list(ACTIONS),
                "artifactData": decision,
            }
            schema = answers(_DECIDED, _EDITED)
            return Suspended(kind="approval", key=key, data=data, resume_schema=schema)
        case "clarification":
            question = f"{why} Answer accept, reject, or the decision to take instead."
            said: JsonObject = {"anyOf": [YES_OR_NO, DECISION], "$defs": answers()["$defs"]}
            asked = {"id": "decision", "question": question, "schema": said}
            return Suspended(kind="clarification", key=key, data={"questions": [asked]})
        case vendor:
            data = {"customKind": vendor, "payload": {"decision": decision, "why": why}}
            schema = answers(YES_OR_NO, DECISION, _DECIDED, _INSTEAD, _EDITED)
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


def ratified(decision: JsonObject, answer: Json) -> JsonObject | None:
    """The decision that stands after the answer; None sends the supervisor back to think."""
    said: Json = answer
    if is_object(said) and "answers" in said:
        said = said["answers"]["decision"]
    action: Json = said.get("action") if is_object(said) else said
    if action == "accept":
        return decision
    if action == "reject":
        return None
    if is_object(said):
        said = said.get("editedArtifactData", said.get("decision", said))
    return given_instead(said)
