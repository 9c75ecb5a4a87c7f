"""Decides governance gates: only those entitled may, overrides are told apart, doubt denies."""

from __future__ import annotations

import msgspec

from wopr.engine.answers import Governed, tally
from wopr.engine.interrupts import GOVERNANCE, GovernanceRule, Interrupt
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import Forbidden, Refused
from wopr.protocol.interrupts import ApprovalData
from wopr.runtime.appender import Burst
from wopr.runtime.waits import Resolver, end_wait, grant, receive, reject, resume_node


def govern(
    burst: Burst, node_id: str, interrupt: Interrupt, said: Governed, by: Resolver
) -> Forbidden | None:
    """Append what a decision on a governance gate leads to, also when it was not theirs to make."""
    rule = msgspec.convert(interrupt.data[GOVERNANCE], GovernanceRule)
    voter = by.as_voter(said.voter)
    if not _is_entitled(rule, by) and not _may_override(rule, said, by):
        return _deny(burst, node_id, voter)
    if not said.is_grant:
        _send_back(burst, node_id, interrupt, said, voter)
        return None
    if _may_override(rule, said, by) and not _is_entitled(rule, by):
        is_final = _override(burst, node_id, interrupt, said, voter)
    else:
        is_final = _count(burst, node_id, interrupt, voter)
    if is_final:
        value: JsonObject = {"decision": "granted"}
        if said.reason:
            value["reason"] = said.reason
        decision: JsonObject = {"action": "accept"}
        end_wait(burst, node_id, interrupt, value, voter, decision)
        receive(burst, node_id, decision, voter)
        resume_node(burst, node_id, interrupt, value)
    return None


def may_grant(rule: GovernanceRule, by: Resolver) -> bool:
    """Tell whether somebody may open a governance gate, as one entitled or by its override."""
    return _is_entitled(rule, by) or by.role == rule.override_role


def _is_entitled(rule: GovernanceRule, by: Resolver) -> bool:
    has_role = isinstance(rule.required_role, Unset) or by.role == rule.required_role
    has_scope = isinstance(rule.required_scope, Unset) or rule.required_scope in by.scopes
    return has_role and has_scope


def _may_override(rule: GovernanceRule, said: Governed, by: Resolver) -> bool:
    """An override can open a gate and not close it."""
    return by.role == rule.override_role and said.is_grant


def _deny(burst: Burst, node_id: str, voter: str) -> Forbidden:
    decided: JsonObject = {
        "principal": voter,
        "action": "approvals:respond",
        "resource": f"{burst.state.identity.run_id}/{node_id}",
        "allowed": False,
        "reason": "neither the role or scope that the gate requires, nor that of its override",
    }
    burst.add("authorization.decided", decided, node_id=node_id)
    return Forbidden("this gate is not yours to decide")


def _count(burst: Burst, node_id: str, interrupt: Interrupt, voter: str) -> bool:
    required = msgspec.convert(interrupt.data, ApprovalData).required_approvals
    grant(burst, node_id, voter, required)
    counted = burst.state.nodes[node_id].interrupt
    return counted is not None and tally(counted).is_decided


def _override(burst: Burst, node_id: str, interrupt: Interrupt, said: Governed, voter: str) -> bool:
    """Record who opened the gate from outside and why; the quorum still holds unless waived."""
    if not said.reason:
        raise Refused(
            "an override needs resumeValue.reason",
            code="INVALID_RESUME_VALUE",
            field="resumeValue.reason",
        )
    payload: JsonObject = {"gateId": node_id, "principal": voter, "reason": said.reason}
    burst.add("approval.overridden", payload, node_id=node_id)
    data = msgspec.convert(interrupt.data, ApprovalData)
    return data.override_bypasses_quorum or _count(burst, node_id, interrupt, voter)


def _send_back(
    burst: Burst, node_id: str, interrupt: Interrupt, said: Governed, voter: str
) -> None:
    """A rejection loops back to what feeds the gate, with the reason as feedback."""
    reject(burst, node_id, voter, said.reason)
    value: JsonObject = {"decision": "rejected"}
    feedback: JsonObject = {"scope": "whole"}
    if said.reason:
        value["reason"] = feedback["text"] = said.reason
    decision: JsonObject = {"action": "refine", "refineFeedback": feedback}
    end_wait(burst, node_id, interrupt, value, voter, decision)
    receive(burst, node_id, decision, voter)
