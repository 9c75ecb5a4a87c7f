"""Who may answer a wait, told before they try."""

from __future__ import annotations

import msgspec

from wopr.engine.asking import ORCHESTRATOR_DECISION
from wopr.engine.expression_tokens import is_object
from wopr.engine.interrupts import GOVERNANCE, GovernanceRule
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import ApprovalData
from wopr.runtime.approving import may_decide
from wopr.runtime.governing import may_grant
from wopr.runtime.waits import Resolver


def governance_of(data: JsonObject) -> GovernanceRule | None:
    """Who may decide a governance gate; None for a wait that is none."""
    return msgspec.convert(data[GOVERNANCE], GovernanceRule) if GOVERNANCE in data else None


def may_answer(kind: str, data: JsonObject, by: Resolver) -> bool:
    """Tell whether a wait takes an answer of this caller, whose scope the caller has checked."""
    rule = governance_of(data)
    if rule is not None:
        return may_grant(rule, by)
    if kind == "approval":
        return may_decide(msgspec.convert(data, ApprovalData), by.name, by)
    return True


def held_decision(data: JsonObject) -> JsonObject:
    """The supervisor's decision that a wait holds back because it is not sure enough, or nothing."""
    payload: Json = data.get("payload")
    held: Json = payload.get("decision") if is_object(payload) else None
    if data.get("artifactType") == ORCHESTRATOR_DECISION:
        held = data.get("artifactData")
    return held if is_object(held) else {}
