"""Approval and governance gates: who may decide, votes and quorum, and the events of a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.engine.interrupts import (
    GOVERNANCE,
    ORCHESTRATOR_DECISION,
    GovernanceRule,
    Interrupt,
    Resolution,
)
from wopr.engine.resume_values import GovernanceValue, action_of, is_question, is_vote, tally
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.errors import Forbidden, Refused
from wopr.protocol.interrupts import (
    INTERRUPT_KIND,
    ApprovalData,
    ApprovalResume,
    EditAccept,
    Refine,
)
from wopr.runs.append import EventBatch

# Members of a decision on an approval that `interrupt.resolved` carries itself.
DECISION_MEMBERS: Final = ("action", "refineFeedback", "editedArtifactData")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """The authenticated caller who resolves an interrupt."""

    name: str
    role: str = ""
    scopes: frozenset[str] = frozenset()
    # Whether a vote may name its voter. Only test keys may.
    may_name_voter: bool = False
    # Whether a signed token authenticates the caller. It does not identify a person.
    by_token: bool = False

    def as_voter(self, voter: Json) -> str:
        """Return the name that a vote counts under. `voter` is ignored except for test keys."""
        is_named = self.may_name_voter and isinstance(voter, str) and voter
        return f"{self.name}#{voter}" if is_named else self.name


def append_resolution(
    batch: EventBatch,
    node_id: str,
    interrupt: Interrupt,
    value: Json,
    by: str,
    decision: JsonObject | None = None,
) -> None:
    """Append the resolution of an interrupt.

    `decision` is the decision on an approval. The event repeats its action, and its feedback or
    edited artifact, beside the resume value.
    """
    decided = decision or {}
    payload: JsonObject = {
        **{name: decided[name] for name in DECISION_MEMBERS if name in decided},
        "nodeId": node_id,
        "interruptId": interrupt.interrupt_id,
        "kind": interrupt.event_kind,
        "resumeValue": value,
        "resolvedAt": batch.iso,
        "resolvedBy": by,
    }
    if interrupt.kind != interrupt.event_kind:
        payload[INTERRUPT_KIND] = interrupt.kind
    cause = interrupt.suspended_event
    batch.add("interrupt.resolved", payload, node_id=node_id, causation_id=cause)


def resume_node(batch: EventBatch, node_id: str, interrupt: Interrupt, value: Json) -> None:
    """Append that a node continues with a resume value."""
    payload: JsonObject = {
        "nodeId": node_id,
        "interruptId": interrupt.interrupt_id,
        "resumeValue": value,
    }
    batch.add("node.resumed", payload, node_id=node_id)


def add_decision(
    batch: EventBatch, node_id: str, value: JsonObject, decided_by: str, decided_at: str = ""
) -> None:
    """Append a decision on a gate. The host sets who decided, never the client.

    `decided_at` is the time of a decision that was recorded earlier.
    """
    decided: JsonObject = {"decidedBy": decided_by, "decidedAt": decided_at or batch.iso}
    batch.add("approval.received", {"nodeId": node_id, **value, **decided}, node_id=node_id)


def grant(batch: EventBatch, node_id: str, voter: str, required: int) -> None:
    """Append a vote for a gate, with the progress of the quorum. A voter counts once."""
    interrupt = batch.state.nodes[node_id].interrupt
    ballots = () if interrupt is None else interrupt.ballots
    others = sum(ballot.is_grant for ballot in ballots if ballot.voter != voter)
    progress = {"granted": others + 1, "required": required}
    payload: JsonObject = {"gateId": node_id, "principal": voter, "quorumProgress": progress}
    batch.add("approval.granted", payload, node_id=node_id)


def reject(batch: EventBatch, node_id: str, voter: str, reason: str = "") -> None:
    """Append a vote against a gate."""
    payload: JsonObject = {"gateId": node_id, "principal": voter}
    if reason:
        payload["reason"] = reason
    batch.add("approval.rejected", payload, node_id=node_id)


def approve(
    batch: EventBatch, node_id: str, interrupt: Interrupt, resume: ApprovalResume, by: Resolver
) -> None:
    """Append the events of a vote, a decision or a question on an approval gate."""
    data = msgspec.convert(interrupt.data, ApprovalData)
    voter = by.as_voter(resume.voter)
    if not may_decide(data, voter, by):
        raise Forbidden("You are not an approver of this gate.")
    if is_question(resume):
        _add_question(batch, node_id, resume, voter)
        return
    decided_by = _vote(batch, node_id, resume, voter, data) if is_vote(resume) else voter
    if not decided_by:
        return
    value = _decision_payload(resume)
    append_resolution(batch, node_id, interrupt, value, voter, decision=value)
    add_decision(batch, node_id, value, decided_by)
    if not isinstance(resume, Refine):
        resume_node(batch, node_id, interrupt, value)


def may_decide(data: ApprovalData, voter: str, by: Resolver) -> bool:
    """Return whether the caller may decide a gate. Without approvers, the scope of the key decides.

    This host has no groups, so no caller is a member of one.
    """
    named, roles, groups = (
        set[str]() if isinstance(names, Unset) else set(names)
        for names in (data.approvers_list, data.approver_role_refs, data.approver_group_refs)
    )
    # The voter that a test key names may be an approver too.
    is_named = bool({by.name, voter, voter.rpartition("#")[2]} & named)
    return not (named or roles or groups) or is_named or by.role in roles


def _add_question(batch: EventBatch, node_id: str, resume: ApprovalResume, voter: str) -> None:
    asked = batch.sensitive.mask_response(
        batch.state, node_id, "approval", msgspec.to_builtins(resume)
    )
    payload: JsonObject = {
        "level": "info",
        "message": "an approver asked a question",
        "nodeId": node_id,
        "fields": {**asked, "askedBy": voter},
    }
    batch.add("log.appended", payload, node_id=node_id)


def _vote(
    batch: EventBatch, node_id: str, resume: ApprovalResume, voter: str, data: ApprovalData
) -> str:
    """Append a vote, and return who decided; empty while the quorum is not reached."""
    if data.required_approvals == 1:
        return voter
    if action_of(resume) == "accept":
        grant(batch, node_id, voter, data.required_approvals)
    else:
        reason = "" if isinstance(resume.feedback, Unset) else resume.feedback
        reject(batch, node_id, voter, reason)
    interrupt = batch.state.nodes[node_id].interrupt
    return "" if interrupt is None else _quorum(interrupt)


def _quorum(interrupt: Interrupt) -> str:
    """Describe the votes that decided a gate; empty while the quorum is not reached."""
    votes = tally(interrupt)
    return f"quorum:{votes.votes}-of-{votes.required}" if votes.is_decided else ""


def add_recorded_decision(
    batch: EventBatch, node_id: str, interrupt: Interrupt, resolution: Resolution
) -> None:
    """Append the decision of a recorded `interrupt.resolved`, as `approve` or `govern` would."""
    recorded = resolution.recorded
    decision: JsonObject = {name: recorded[name] for name in DECISION_MEMBERS if name in recorded}
    is_governed = GOVERNANCE in interrupt.data
    value = (
        decision if is_governed or not is_object(resolution.value) else decision | resolution.value
    )
    required = msgspec.convert(interrupt.data, ApprovalData).required_approvals
    is_counted = required > 1 and not is_governed and value.get("action") in ("accept", "reject")
    decided_by = _quorum(interrupt) if is_counted else ""
    add_decision(
        batch, node_id, value, decided_by or resolution.resolved_by, str(recorded["resolvedAt"])
    )


def _decision_payload(resume: ApprovalResume) -> JsonObject:
    value: JsonObject = {"action": action_of(resume)}
    if not isinstance(resume.feedback, Unset):
        value["feedback"] = resume.feedback
    if isinstance(resume, Refine):
        value["refineFeedback"] = msgspec.to_builtins(resume.refine_feedback)
    if isinstance(resume, EditAccept):
        value["editedArtifactData"] = resume.edited_artifact_data
    return value


def govern(
    batch: EventBatch, node_id: str, interrupt: Interrupt, response: GovernanceValue, by: Resolver
) -> Forbidden | None:
    """Append the events of a decision on a governance gate.

    Returns the error for a caller who may not decide. The denial is on the log.
    """
    rule = msgspec.convert(interrupt.data[GOVERNANCE], GovernanceRule)
    voter = by.as_voter(response.voter)
    if not _is_entitled(rule, by) and not _may_override(rule, response, by):
        return _deny(batch, node_id, voter)
    if not response.is_grant:
        _request_changes(batch, node_id, interrupt, response, voter)
        return None
    if _may_override(rule, response, by) and not _is_entitled(rule, by):
        is_final = _override(batch, node_id, interrupt, response, voter)
    else:
        is_final = _add_grant(batch, node_id, interrupt, voter)
    if is_final:
        value: JsonObject = {"decision": "granted"}
        if response.reason:
            value["reason"] = response.reason
        decision: JsonObject = {"action": "accept"}
        append_resolution(batch, node_id, interrupt, value, voter, decision)
        add_decision(batch, node_id, decision, voter)
        resume_node(batch, node_id, interrupt, value)
    return None


def may_grant(rule: GovernanceRule, by: Resolver) -> bool:
    """Return whether the caller may grant a governance gate, by entitlement or by override."""
    return _is_entitled(rule, by) or by.role == rule.override_role


def _is_entitled(rule: GovernanceRule, by: Resolver) -> bool:
    has_role = isinstance(rule.required_role, Unset) or by.role == rule.required_role
    has_scope = isinstance(rule.required_scope, Unset) or rule.required_scope in by.scopes
    return has_role and has_scope


def _may_override(rule: GovernanceRule, response: GovernanceValue, by: Resolver) -> bool:
    """Return whether the caller may override. An override can grant a gate and not reject it."""
    return by.role == rule.override_role and response.is_grant


def _deny(batch: EventBatch, node_id: str, voter: str) -> Forbidden:
    decided: JsonObject = {
        "principal": voter,
        "action": "approvals:respond",
        "resource": f"{batch.state.identity.run_id}/{node_id}",
        "allowed": False,
        "reason": "neither the role or scope that the gate requires, nor that of its override",
    }
    batch.add("authorization.decided", decided, node_id=node_id)
    return Forbidden("You have neither the role or scope of this gate nor its override role.")


def _add_grant(batch: EventBatch, node_id: str, interrupt: Interrupt, voter: str) -> bool:
    """Append a vote for a gate; True when the quorum is reached."""
    required = msgspec.convert(interrupt.data, ApprovalData).required_approvals
    grant(batch, node_id, voter, required)
    voted = batch.state.nodes[node_id].interrupt
    return voted is not None and tally(voted).is_decided


def _override(
    batch: EventBatch, node_id: str, interrupt: Interrupt, response: GovernanceValue, voter: str
) -> bool:
    """Append who overrode the gate and why. The quorum still applies unless the gate waives it."""
    if not response.reason:
        raise Refused(
            "An override requires resumeValue.reason.",
            code="INVALID_RESUME_VALUE",
            field="resumeValue.reason",
        )
    payload: JsonObject = {"gateId": node_id, "principal": voter, "reason": response.reason}
    batch.add("approval.overridden", payload, node_id=node_id)
    data = msgspec.convert(interrupt.data, ApprovalData)
    return data.override_bypasses_quorum or _add_grant(batch, node_id, interrupt, voter)


def _request_changes(
    batch: EventBatch, node_id: str, interrupt: Interrupt, response: GovernanceValue, voter: str
) -> None:
    """Append a rejection. The work is done again, with the reason as feedback."""
    reject(batch, node_id, voter, response.reason)
    value: JsonObject = {"decision": "rejected"}
    feedback: JsonObject = {"scope": "whole"}
    if response.reason:
        value["reason"] = feedback["text"] = response.reason
    decision: JsonObject = {"action": "refine", "refineFeedback": feedback}
    append_resolution(batch, node_id, interrupt, value, voter, decision)
    add_decision(batch, node_id, decision, voter)


def governance_of(data: JsonObject) -> GovernanceRule | None:
    """Return the rule of a governance gate; None for another interrupt."""
    return msgspec.convert(data[GOVERNANCE], GovernanceRule) if GOVERNANCE in data else None


def may_resolve(kind: str, data: JsonObject, by: Resolver) -> bool:
    """Return whether this caller may resolve an interrupt. The key's scope is checked elsewhere."""
    rule = governance_of(data)
    if rule is not None:
        return may_grant(rule, by)
    if kind == "approval":
        return may_decide(msgspec.convert(data, ApprovalData), by.name, by)
    return True


def held_decision(data: JsonObject) -> JsonObject:
    """Return the supervisor's decision that an interrupt is about, or an empty object."""
    payload: Json = data.get("payload")
    decision: Json = payload.get("decision") if is_object(payload) else None
    if data.get("artifactType") == ORCHESTRATOR_DECISION:
        decision = data.get("artifactData")
    return decision if is_object(decision) else {}
