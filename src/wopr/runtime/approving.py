"""Decides approvals: who may, what counts as a vote, and what a decision leads to."""

from __future__ import annotations

import msgspec

from wopr.engine.answers import action_of, is_question, is_vote, tally
from wopr.engine.expression_tokens import is_object
from wopr.engine.interrupts import GOVERNANCE, Interrupt, Resolution
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import Forbidden
from wopr.protocol.interrupts import ApprovalData, ApprovalResume, EditAccept, Refine
from wopr.runtime.appender import Burst
from wopr.runtime.waits import (
    DECISION_MEMBERS,
    Resolver,
    end_wait,
    grant,
    receive,
    reject,
    resume_node,
)


def approve(
    burst: Burst, node_id: str, interrupt: Interrupt, resume: ApprovalResume, by: Resolver
) -> None:
    """Append what a vote, a decision or a question on a gate leads to."""
    data = msgspec.convert(interrupt.data, ApprovalData)
    voter = by.as_voter(resume.voter)
    if not may_decide(data, voter, by):
        raise Forbidden("this gate does not name you among its approvers")
    if is_question(resume):
        _ask_back(burst, node_id, resume, voter)
        return
    decided_by = _vote(burst, node_id, resume, voter, data) if is_vote(resume) else voter
    if not decided_by:
        return
    value = _recorded(resume)
    end_wait(burst, node_id, interrupt, value, voter, decision=value)
    receive(burst, node_id, value, decided_by)
    if not isinstance(resume, Refine):
        resume_node(burst, node_id, interrupt, value)


def may_decide(data: ApprovalData, voter: str, by: Resolver) -> bool:
    """Tell who may decide, which is the gate's to say; one that names nobody leaves it to the scope.

    This host knows no groups, so nobody is in one.
    """
    named, roles, groups = (
        set[str]() if isinstance(names, Unset) else set(names)
        for names in (data.approvers_list, data.approver_role_refs, data.approver_group_refs)
    )
    # A voter that a test key names is eligible under that name too.
    is_named = bool({by.name, voter, voter.rpartition("#")[2]} & named)
    return not (named or roles or groups) or is_named or by.role in roles


def _ask_back(burst: Burst, node_id: str, resume: ApprovalResume, voter: str) -> None:
    asked = burst.vault.shown_answer(burst.state, node_id, "approval", msgspec.to_builtins(resume))
    payload: JsonObject = {
        "level": "info",
        "message": "an approver asked a question",
        "nodeId": node_id,
        "fields": {**asked, "askedBy": voter},
    }
    burst.add("log.appended", payload, node_id=node_id)


def _vote(
    burst: Burst, node_id: str, resume: ApprovalResume, voter: str, data: ApprovalData
) -> str:
    """Count a vote and say who decided with it; empty while the gate needs more."""
    if data.required_approvals == 1:
        return voter
    if action_of(resume) == "accept":
        grant(burst, node_id, voter, data.required_approvals)
    else:
        reason = "" if isinstance(resume.feedback, Unset) else resume.feedback
        reject(burst, node_id, voter, reason)
    interrupt = burst.state.nodes[node_id].interrupt
    return "" if interrupt is None else _quorum(interrupt)


def _quorum(interrupt: Interrupt) -> str:
    """The votes that decided a gate; empty while the gate needs more."""
    counted = tally(interrupt)
    return f"quorum:{counted.votes}-of-{counted.required}" if counted.is_decided else ""


def receive_recorded(burst: Burst, node_id: str, interrupt: Interrupt, past: Resolution) -> None:
    """Append the decision that `interrupt.resolved` records, as `approve` or `govern` took it."""
    recorded = past.recorded
    decision: JsonObject = {name: recorded[name] for name in DECISION_MEMBERS if name in recorded}
    is_governed = GOVERNANCE in interrupt.data
    value = decision if is_governed or not is_object(past.value) else decision | past.value
    required = msgspec.convert(interrupt.data, ApprovalData).required_approvals
    is_counted = required > 1 and not is_governed and value.get("action") in ("accept", "reject")
    decided_by = _quorum(interrupt) if is_counted else ""
    receive(burst, node_id, value, decided_by or past.resolved_by, str(recorded["resolvedAt"]))


def _recorded(resume: ApprovalResume) -> JsonObject:
    value: JsonObject = {"action": action_of(resume)}
    if not isinstance(resume.feedback, Unset):
        value["feedback"] = resume.feedback
    if isinstance(resume, Refine):
        value["refineFeedback"] = msgspec.to_builtins(resume.refine_feedback)
    if isinstance(resume, EditAccept):
        value["editedArtifactData"] = resume.edited_artifact_data
    return value
